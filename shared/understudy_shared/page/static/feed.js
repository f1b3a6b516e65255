// The router's events, and the watch over them. An open connection does not show that the router lives: a stopped process
// keeps it open, and an offline browser reports it as open. So the time of the last message decides.

const LOST_AFTER_INTERVALS = 3;
const AGAIN_AFTER_INTERVALS = 10;
const LOOK_EVERY_MS = 250;

// `address` returns the URL of the events; `on` has page(parts), heard(generatedAt), and silent(isSilent), which is called
// when that changes. Returns a function that connects again.
export function startFeed(address, intervalMs, on) {
  let source = null;
  let heardAt = performance.now();
  let triedAt = heardAt;
  let isSilent = false;

  function heard(event, use) {
    const document = JSON.parse(event.data);
    use(document);
    on.heard(document.generated_at);
    heardAt = performance.now(); // last: a message that could not be shown does not count
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
    // A browser gives up after an error response, and waits for ever for a host that is gone.
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
