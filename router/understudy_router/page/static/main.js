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
import { updateServed, updateStores } from "./stores.js";
import { startTheme } from "./theme.js";
import { startUrl } from "./url.js";
import { clock, duration } from "./words.js";

const INTERVAL_MS = Number(document.body.dataset.intervalMs);

const state = createState();
const drain = startDrain();
const curves = ["lag-curve", "freshness-curve"].map((id) => startCurve(byId(id)));
const openedCurve = startCurve(byId("replica-curve"));
let opened = null;

const url = startUrl(() => {
  state.tell();
  history.load();
  openedHistory.load();
});
const ask = startAsk(url);

const history = startHistory(
  () => (url.query.store && knows(url.query.store) ? { store: url.query.store } : {}),
  (found) => curves.forEach((curve) => curve.draw(found)),
);
const openedHistory = startHistory(
  () => opened && { store: opened.store, partition: opened.partition },
  (found) => openedCurve.draw(found),
);

const knows = (store) => state.overview?.stores.some((each) => each.store === store) ?? false;

function update(overview) {
  const { query } = url;
  updateHealth(overview);
  updateFigures(overview);
  updateStores(overview, query);
  updateServed(overview);
  updateReplicas(overview, query);
  const before = opened;
  opened = updateOpened(overview, query);
  if (opened && (before?.store !== opened.store || before.partition !== opened.partition)) openedHistory.load();
  updateNodes(overview, drain);
  updateRestores(overview);
  updateDisagreement(overview);
  updateEvents(overview);
  ask.update(overview, query);
  rove();
  const name = query.store ? `Lag of ${query.store}` : "Lag of the worst store partition";
  setText(byId("lag-curve").querySelector("figcaption").firstChild, `${name} `);
}

function timed(overview) {
  performance.mark("update");
  update(overview);
  performance.measure("understudy:update", "update");
}

// "Stale" is said by the time since the last message: see feed.js.
function silent(ms) {
  const banner = byId("stale");
  banner.hidden = ms === 0;
  document.body.toggleAttribute("data-stale", ms > 0);
  setText(byId("live"), ms === 0 ? "live" : "stale");
  setAttribute(byId("live"), "data-state", ms === 0 ? "live" : "stale");
  if (ms > 0) {
    const since = byId("now").querySelector("time").textContent;
    // A screen reader is told once: the seconds are for the eye.
    setText(byId("stale"), `Stale: nothing heard of this router for ${duration(Math.floor(ms / 1000) * 1000)}. What is below is of ${since}.`);
  }
}

state.listen(timed);
startUrlControls();
startFeed("/admin/v1/events", INTERVAL_MS, {
  whole: (document) => state.replace(document),
  delta: (delta) => state.merge(delta),
  heard: (generatedAt) => {
    setTime(byId("now"), generatedAt, clock(generatedAt));
    if (byId("live").dataset.state !== "live") silent(0);
  },
  silent,
});

function startUrlControls() {
  startReplicas(url);
  startKeys(url);
  startOpened(() => opened, ask.choose);
  startTheme(byId("theme"), () => [...curves, openedCurve].forEach((curve) => curve.redraw()));
  byId("stores").addEventListener("click", (event) => {
    const link = event.target.closest('a[data-link="store"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { store } = link.closest("tr").dataset.key === url.query.store ? { store: "" } : { store: link.closest("tr").dataset.key };
    url.set({ store, page: 1, open: "" });
  });
  history.load();
}
