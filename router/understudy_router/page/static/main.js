// Keeps the page true: each part is written again when the router says something new, or the reader chooses.

import { startAsk } from "./ask.js";
import { startCurve } from "./curves.js";
import { byId, setAttribute, setText, setTime } from "./dom.js";
import { startDrain } from "./drain.js";
import { updateEvents } from "./events.js";
import { startFeed } from "./feed.js";
import { updateFigures, updateHealth } from "./health.js";
import { startHistory } from "./history.js";
import { rove, startKeys } from "./keys.js";
import { updateDisagreement, updateNodes, updateRestores } from "./nodes.js";
import { startOpened, updateOpened } from "./opened.js";
import { startReplicas, updateReplicas } from "./replicas.js";
import { createState } from "./state.js";
import { startStores, updateServed, updateStores } from "./stores.js";
import { startTheme } from "./theme.js";
import { startUrl } from "./url.js";
import { clock } from "./words.js";

const INTERVAL_MS = Number(document.body.dataset.intervalMs);

const state = createState();
const drain = startDrain();
const [lagCurve, freshnessCurve, openedCurve] = ["lag-curve", "freshness-curve", "replica-curve"].map((id) =>
  startCurve(byId(id)),
);
let opened = null;

const url = startUrl(() => {
  state.tell();
  lastHour.load();
  storeHour.load();
});
const ask = startAsk(url);
// Freshness is of the whole; lag is of the store that is chosen, if one is.
const lastHour = startHistory(
  () => ({}),
  (history) => {
    freshnessCurve.draw(history);
    if (!url.query.store) lagCurve.draw(history);
  },
);
const storeHour = startHistory(
  () => (url.query.store ? { store: url.query.store } : null),
  lagCurve.draw,
);
const openedHour = startHistory(
  () => opened && { store: opened.store, partition: opened.partition },
  (history) => openedCurve.draw(history),
);

function update(overview) {
  const { query } = url;
  updateHealth(overview);
  updateFigures(overview);
  updateStores(overview, query);
  updateServed(overview);
  updateReplicas(overview, query);
  showOpened(updateOpened(overview, query));
  updateNodes(overview, drain);
  updateRestores(overview);
  updateDisagreement(overview);
  updateEvents(overview);
  ask.update(overview, query);
  rove();
  const label = query.store ? `Lag of ${query.store}` : "Lag of the worst store partition";
  setText(byId("lag-curve").querySelector("figcaption").firstChild, `${label} `);
}

function showOpened(replica) {
  const isSame = replica !== null && opened?.store === replica.store && opened.partition === replica.partition;
  if (opened !== null && !isSame) openedCurve.clear();
  opened = replica;
  if (replica !== null && !isSame) openedHour.load();
}

// Measured, so that a benchmark can say how long it takes.
function timed(overview) {
  const began = performance.now();
  update(overview);
  performance.measure("understudy:update", { start: began, end: performance.now() });
}

// "Stale" is said by the time since the last message: feed.js. It is said once, not each second: it is read out.
function silent(isSilent) {
  byId("stale").hidden = !isSilent;
  document.body.toggleAttribute("data-stale", isSilent);
  setText(byId("live"), isSilent ? "stale" : "live");
  setAttribute(byId("live"), "data-state", isSilent ? "stale" : "live");
  const since = byId("now").querySelector("time").textContent;
  setText(byId("stale"), isSilent ? `Stale: nothing was heard of this router since ${since}. All below is of then.` : "");
}

state.listen(timed);
startReplicas(url);
startStores(url);
startKeys(url);
startOpened(() => opened, ask.choose);
startTheme(byId("theme"), () => [lagCurve, freshnessCurve, openedCurve].forEach((curve) => curve.redraw()));
lastHour.load();
storeHour.load();
startFeed("/admin/v1/events", INTERVAL_MS, {
  whole: state.replace,
  delta: state.merge,
  heard(generatedAt) {
    setTime(byId("now"), generatedAt, clock(generatedAt));
    if (byId("live").dataset.state !== "live") silent(false);
  },
  silent,
});
