// The replica that is open: its facts, its last hour, and what can be done with it.

import { ROLES, cellText, kindOf, stateWords } from "./cells.js";
import { asCurl, copy } from "./commands.js";
import { byId, element, setAttribute, setText } from "./dom.js";
import { linkTo } from "./url.js";
import { UNKNOWN, age, batches, number } from "./words.js";

// The replica at `store/partition/node`, or null.
export function findReplica(rows, place) {
  for (const row of rows) {
    const before = `${row.store}/${row.partition}/`;
    const nodeId = place.slice(before.length);
    if (place.startsWith(before) && Object.hasOwn(row.cells, nodeId)) return { ...row, nodeId, cell: row.cells[nodeId] };
  }
  return null;
}

export function updateOpened(overview, query) {
  const panel = byId("replica");
  const replica = query.open ? findReplica(overview.grid.rows, query.open) : null;
  panel.hidden = replica === null;
  setAttribute(panel.querySelector('[data-link="close"]'), "href", linkTo(query, { open: "" }));
  if (replica === null) return null;
  const kind = kindOf(replica.cell);
  setText(byId("replica-title"), `${replica.store} ${replica.partition} on ${replica.nodeId}: ${cellText(replica.cell, kind)}`);
  const list = byId("replica-facts");
  const facts = factsOf(replica.cell, kind, overview.end);
  if (list.children.length !== facts.length * 2) {
    list.replaceChildren(...facts.flatMap(() => [element("dt"), element("dd")]));
  }
  facts.flat().forEach((text, index) => setText(list.children[index], text));
  return replica;
}

function factsOf(cell, kind, end) {
  const isKnown = cell.lag !== null && end.version !== null;
  const facts = [
    ["role", ROLES[cell.role] ?? cell.role],
    ["state", stateWords(cell, kind)],
    ["version", isKnown ? `${number(end.version - cell.lag)} of ${number(end.version)}` : UNKNOWN],
    ["behind", `${batches(cell.lag)}, ${age(cell.lag_ms)}`],
    ["reported", cell.age_ms === null ? UNKNOWN : `${age(cell.age_ms)} ago`],
  ];
  return cell.error ? [...facts, ["error", cell.error]] : facts;
}

// `current` gives the replica that is open now.
export function startOpened(current, explain) {
  byId("replica-explain").hidden = false;
  byId("replica-copy").hidden = false;
  byId("replica-explain").addEventListener("click", () => explain(current().store));
  byId("replica-copy").addEventListener("click", () => {
    const { store, nodeId } = current();
    copy(asCurl(`/admin/v1/lag?${new URLSearchParams({ store, node: nodeId })}`), byId("replica-copy"));
  });
}
