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
    const parameters = wanted();
    turn += 1;
    const mine = turn;
    if (parameters === null || document.hidden) return;
    try {
      const reply = await fetch(`/admin/v1/history?${new URLSearchParams({ ...parameters, minutes: 60 })}`, {
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      if (!reply.ok || mine !== turn) return;
      const history = await reply.json();
      stepMs = Math.max(1000, history.step_ms);
      use(history);
    } catch {
      // What is drawn stays; that the router is silent is said by the banner.
    }
  }

  document.addEventListener("visibilitychange", () => document.hidden || load());
  return { load };
}
