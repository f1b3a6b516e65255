// Draining a node: the dialog first shows the cost and asks; then the node is drained; and that can be undone.

import { pairs } from "./answer.js";
import { byId, setText } from "./dom.js";
import { reports } from "./paths.js";

const TIMEOUT_MS = 10_000;
const TOAST_MS = 20_000;

const of = (nodeId) => `${reports}/nodes/${encodeURIComponent(nodeId)}`;

export function startDrain() {
  const dialog = byId("drain");
  let asked = "";
  let toast = 0;

  async function ask(nodeId) {
    asked = nodeId;
    setText(byId("drain-title"), `Drain ${nodeId}?`);
    setText(byId("drain-why"), "Asking whether it is safe to stop…");
    byId("drain-loses").replaceChildren();
    byId("drain-problem").hidden = true;
    byId("drain-do").disabled = false;
    dialog.showModal();
    const { ok, document } = await call(`${of(nodeId)}/safe-to-stop`);
    if (asked !== nodeId) return;
    if (!ok) setText(byId("drain-why"), `Whether it is safe to stop is not known: ${document.detail}`);
    else {
      const said = document.safe ? "✓ It is safe to stop" : "✕ It is not safe to stop now";
      setText(byId("drain-why"), `${said}: ${document.why}`);
      byId("drain-loses").replaceChildren(...pairs(losses(document.would_lose)).children);
    }
  }

  async function send(nodeId, drain) {
    const { ok, document } = await call(`${of(nodeId)}/drain`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ drain }),
    });
    if (ok) {
      dialog.close();
      showToast(drain ? `${nodeId} drains: its replicas move to other nodes.` : `${nodeId} takes replicas again.`, () =>
        send(nodeId, !drain),
      );
      return;
    }
    const problem = `${document.detail}${document.fix ? `. ${document.fix}` : ""}`;
    if (dialog.open) {
      setText(byId("drain-problem"), problem);
      byId("drain-problem").hidden = false;
    } else showToast(problem, null);
  }

  function showToast(text, undo) {
    clearTimeout(toast);
    setText(byId("toast-text"), text);
    byId("toast-undo").hidden = undo === null;
    byId("toast-undo").onclick = () => {
      byId("toast").hidden = true;
      undo();
    };
    byId("toast").hidden = false;
    toast = setTimeout(() => {
      byId("toast").hidden = true;
    }, TOAST_MS);
  }

  byId("drain-do").addEventListener("click", async () => {
    byId("drain-do").disabled = true;
    await send(asked, true);
    byId("drain-do").disabled = false;
  });
  return { ask, send };
}

const MAX_NAMED = 20;

// The router lists at most a thousand, and counts all.
function losses(loses) {
  const named = (kind) => {
    const places = loses[kind];
    const total = loses.counts?.[kind] ?? places.length;
    const names = places.slice(0, MAX_NAMED).map(({ store, partition }) => `${store} ${partition}`);
    return names.join(", ") + (total > names.length ? ` and ${total - names.length} more` : "");
  };
  const entries = [
    ["last replica of", named("last_replica")],
    ["bound of", named("bound")],
    ["active of (a standby takes over)", named("active")],
  ];
  return entries.filter(([, text]) => text !== "");
}

// Returns the reply as JSON; for a router that cannot be reached, returns a problem.
async function call(path, options = {}) {
  try {
    const reply = await fetch(path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) });
    return { ok: reply.ok, document: await reply.json() };
  } catch (error) {
    return { ok: false, document: { detail: `the router did not answer: ${error.message}` } };
  }
}
