// The last hour, as the router remembers it: loaded again after each step, while the page is visible.

import { reports } from "./paths.js";

const TIMEOUT_MS = 5000;
const FIRST_STEP_MS = 10_000;

// `wanted` returns the parameters of the history to show, or null to show no history. `use` gets each one that arrives.
export function startHistory(wanted, use) {
  let turn = 0;
  let stepMs = FIRST_STEP_MS;
  let next = 0;

  async function load() {
    clearTimeout(next);
    next = setTimeout(load, stepMs);
    turn += 1;
    const mine = turn;
    const parameters = wanted();
    if (parameters === null || document.hidden) return;
    const history = await historyOf(parameters);
    if (history === null || mine !== turn) return; // another history is wanted by now
    stepMs = Math.max(1000, history.step_ms);
    use(history);
  }

  document.addEventListener("visibilitychange", () => document.hidden || load());
  return { load };
}

// Returns null when the router does not send it: the curve stays, and the banner reports a silent router.
async function historyOf(parameters) {
  try {
    const query = new URLSearchParams({ ...parameters, minutes: 60 });
    const reply = await fetch(`${reports}/history?${query}`, { signal: AbortSignal.timeout(TIMEOUT_MS) });
    return reply.ok ? await reply.json() : null;
  } catch {
    return null;
  }
}
