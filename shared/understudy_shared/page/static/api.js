// Calls of the public API by the page: at its own origin, by the reader's own credential, with a deadline.

const TIMEOUT_MS = 10_000;

// Returns whether the answer is good, and its document. A router that does not answer is a problem like any other.
export async function call(path, { signal = null, timeoutMs = TIMEOUT_MS } = {}) {
  const signals = [AbortSignal.timeout(timeoutMs), ...(signal ? [signal] : [])];
  try {
    const reply = await fetch(path, { signal: AbortSignal.any(signals), cache: "no-store" });
    return { isGood: reply.ok, document: await reply.json() };
  } catch (error) {
    const detail = `no answer came: ${error.message}`;
    const fix = "Look whether the service runs";
    return { isGood: false, document: { title: "No answer", type: "no-answer", detail, fix } };
  }
}
