// The router's events, and the watch over them. An open connection proves nothing: a process that is stopped keeps it
// open, and a browser that is offline keeps it "live". So what counts is when the last message came.

const LOST_AFTER_INTERVALS = 3;
const AGAIN_AFTER_INTERVALS = 10;
const LOOK_EVERY_MS = 250;

// `address` says what to hear now; `on` has page(parts), heard(generatedAt), and silent(isSilent), called when that changes.
// What is returned hears anew.
export function startFeed(address, intervalMs, on) {
  let source = null;
  let heardAt = performance.now();
  let triedAt = heardAt;
  let isSilent = false;

  function heard(event, use) {
    const document = JSON.parse(event.data);
    use(document);
    on.heard(document.generated_at);
    heardAt = performance.now(); // last: what could not be shown was not heard
    tell(false);
  }

  function tell(isNow) {
    if (isNow === isSilent) return;
    isSilent = isNow;
    on.silent(isNow);
  }

  function connect() {
    source?.close();
    triedAt = performance.now();
    source = new EventSource(address());
    source.addEventListener("page", (event) => heard(event, on.page));
    source.addEventListener("heartbeat", (event) => heard(event, () => {}));
  }

  function look() {
    const now = performance.now();
    tell(now - heardAt >= LOST_AFTER_INTERVALS * intervalMs);
    if (!isSilent) return;
    // A browser gives up after an answer that is an error, and waits for good on a host that is gone.
    const isGivenUp = source.readyState === EventSource.CLOSED;
    const againMs = (isGivenUp ? LOST_AFTER_INTERVALS : AGAIN_AFTER_INTERVALS) * intervalMs;
    if (now - triedAt >= againMs) connect();
  }

  connect();
  setInterval(look, LOOK_EVERY_MS);
  addEventListener("online", connect);
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && connect());
  return connect;
}
