// The last hour, as the router remembers it: asked again whenever a step has passed, while somebody can see it.

const TIMEOUT_MS = 5000;
const FIRST_STEP_MS = 10_000;

// `wanted` says which history now: an object of parameters, or null for none. `use` gets each that comes.
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
    if (history === null || mine !== turn) return; // another one is wanted by now
    stepMs = Math.max(1000, history.step_ms);
    use(history);
  }

  document.addEventListener("visibilitychange", () => document.hidden || load());
  return { load };
}

// Null when there is none: what is drawn stays, and that a router is silent is said by the banner.
async function historyOf(parameters) {
  try {
    const query = new URLSearchParams({ ...parameters, minutes: 60 });
    const reply = await fetch(`/admin/v1/history?${query}`, { signal: AbortSignal.timeout(TIMEOUT_MS) });
    return reply.ok ? await reply.json() : null;
  } catch {
    return null;
  }
}
