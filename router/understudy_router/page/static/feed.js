// The router's events, and the watch over them. An open connection proves nothing: a process that is stopped keeps it
// open, and a browser that is offline keeps it "live". So what counts is when the last message came.

const LOST_AFTER_INTERVALS = 3;
const AGAIN_AFTER_INTERVALS = 10;
const LOOK_EVERY_MS = 250;

// `on` has whole(document), delta(delta), heard(generatedAt) and silent(ms): silent(0) takes it back.
export function startFeed(url, intervalMs, on) {
  let source = null;
  let heardAt = performance.now();
  let triedAt = heardAt;
  let isSilent = false;

  const heard = (event, use) => {
    heardAt = performance.now();
    if (isSilent) {
      isSilent = false;
      on.silent(0);
    }
    const document = JSON.parse(event.data);
    use(document);
    on.heard(document.generated_at);
  };

  const connect = () => {
    source?.close();
    triedAt = performance.now();
    source = new EventSource(url);
    source.addEventListener("overview", (event) => heard(event, on.whole));
    source.addEventListener("delta", (event) => heard(event, on.delta));
    source.addEventListener("heartbeat", (event) => heard(event, () => {}));
  };

  const look = () => {
    const now = performance.now();
    const silentMs = now - heardAt;
    if (silentMs < LOST_AFTER_INTERVALS * intervalMs) return;
    isSilent = true;
    on.silent(silentMs);
    // A browser gives a connection up after an answer that is an error, and keeps one to a host that is gone.
    const isClosed = source.readyState === EventSource.CLOSED;
    const againMs = (isClosed ? LOST_AFTER_INTERVALS : AGAIN_AFTER_INTERVALS) * intervalMs;
    if (now - triedAt >= againMs && silentMs >= againMs) connect();
  };

  connect();
  setInterval(look, LOOK_EVERY_MS);
  addEventListener("online", connect);
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && connect());
}
