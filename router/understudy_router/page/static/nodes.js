// Nodes, restores, and where this router and a node disagree.

import { byId, fill, keyed, setAttribute, setTime } from "./dom.js";
import { disagreementSlots, nodeSlots, restoreSlots } from "./views.js";
import { clock } from "./words.js";

export function updateNodes(overview, drain) {
  keyed(byId("nodes").tBodies[0], byId("t-node"), overview.nodes, (node) => node.node_id, (row, node) => {
    fill(row, nodeSlots(node));
    const [doIt, undo] = row.querySelectorAll("button");
    const isDraining = node.state === "draining";
    doIt.hidden = !node.live || isDraining;
    undo.hidden = !node.live || !isDraining;
    setAttribute(doIt, "aria-label", `Drain ${node.node_id}…`);
    setAttribute(undo, "aria-label", `Undo drain of ${node.node_id}`);
    doIt.onclick = () => drain.ask(node.node_id);
    undo.onclick = () => drain.send(node.node_id, false);
  });
  byId("no-nodes").hidden = overview.nodes.length > 0;
}

export function updateRestores(overview) {
  const { restores } = overview;
  const keyOf = (each) => `${each.node_id}/${each.task}`;
  keyed(byId("restores"), byId("t-restore"), restores, keyOf, (row, each) => {
    fill(row, restoreSlots(each));
    const bar = row.querySelector("progress");
    const isKnown = each.done_bytes !== null && Boolean(each.total_bytes);
    setAttribute(bar, "max", isKnown ? String(each.total_bytes) : "");
    setAttribute(bar, "value", isKnown ? String(Math.min(each.done_bytes, each.total_bytes)) : "");
  });
  byId("restores-part").hidden = restores.length === 0;
}

export function updateDisagreement(overview) {
  const { disagreement } = overview;
  const keyOf = (each) => `${each.node_id} ${each.node_says}`; // a node may be seen otherwise in several ways
  keyed(byId("disagreement").tBodies[0], byId("t-disagreement"), disagreement, keyOf, (row, each) => {
    fill(row, disagreementSlots(each));
    setTime(row, each.since, clock(each.since));
  });
  byId("disagreement-part").hidden = disagreement.length === 0;
}
