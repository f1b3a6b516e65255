// Keeps the page up to date: the router sends each part that changed, drawn like the page itself.

import { startAsk } from "./ask.js";
import { asCurl, copy } from "./commands.js";
import { startCurve } from "./curves.js";
import { byId, parsed, patch, setText } from "./dom.js";
import { startDrain } from "./drain.js";
import { startExplore } from "./explore.js";
import { startFeed } from "./feed.js";
import { startHistory } from "./history.js";
import { rove, startKeys } from "./keys.js";
import { ownPage, reports } from "./paths.js";
import { startTheme } from "./theme.js";
import { linkTo, startUrl } from "./url.js";
import { clock } from "./words.js";

const INTERVAL_MS = Number(document.body.dataset.intervalMs);

const [lagCurve, freshnessCurve, openedCurve] = ["lag-curve", "freshness-curve", "replica-curve"].map((id) =>
  startCurve(byId(id)),
);
const headline = () => document.querySelector('[data-slot="headline"]').textContent;

const url = startUrl(() => {
  explore.update();
  hearAnew();
  lastHour.load();
  storeHour.load();
});
const ask = startAsk(url);
const explore = startExplore(url);
// Freshness is that of all stores; lag is that of the chosen store, if there is one.
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
  () => {
    const { store, partition } = byId("replica").dataset;
    return store === undefined ? null : { store, partition };
  },
  (history) => openedCurve.draw(history),
);

function update({ html, title }) {
  const [said, opened] = [headline(), placeOf(byId("replica"))];
  const fresh = parsed(html);
  for (const time of fresh.querySelectorAll("time")) setText(time, time.dateTime ? clock(time.dateTime) : "?");
  for (const part of fresh.children) patch(byId(part.id), part);
  if (document.title !== title) document.title = title;
  // A screen reader reads the headline once, when it changes: it has read that of the loaded page already.
  if (headline() !== said) setText(byId("said"), headline());
  if (placeOf(byId("replica")) !== opened) {
    openedCurve.clear();
    openedHour.load();
  }
  showChosen();
}

function showChosen() {
  const { query } = url;
  const { elements } = byId("filter");
  for (const name of ["store", "state", "view"]) elements[name].value = query[name];
  const label = query.store ? `Lag of ${query.store}` : "Lag of the worst store partition";
  setText(byId("lag-curve").querySelector("figcaption").firstChild, `${label} `);
  ask.update(query);
  explore.update();
  rove();
}

const placeOf = ({ dataset }) => [dataset.store, dataset.partition].join("/");

// Measures the update for the benchmark.
function timed(parts) {
  const began = performance.now();
  update(parts);
  performance.measure("understudy:update", { start: began, end: performance.now() });
}

// feed.js decides by the time since the last message. The text is set once, not each second, because it is read out.
function silent(isSilent) {
  byId("stale").hidden = !isSilent;
  document.body.toggleAttribute("data-stale", isSilent);
  setText(byId("live"), isSilent ? "stale" : "live");
  byId("live").dataset.state = isSilent ? "stale" : "live";
  const since = byId("now").querySelector("time").textContent;
  setText(byId("stale"), isSilent ? `Stale: nothing was heard since ${since}. All below is of then.` : "");
}

// Links, filters and buttons change the URL; the feed then brings the parts that show it.
function startMain() {
  const drain = startDrain();
  byId("main").addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="?"]');
    const button = event.target.closest("button[data-act]");
    if (button) {
      const nodeId = button.closest("tr").dataset.key;
      if (button.dataset.act === "drain") drain.ask(nodeId);
      else drain.send(nodeId, false);
    } else if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      url.follow(link.search || "?");
    }
  });
  byId("filter").addEventListener("change", ({ currentTarget: { elements } }) =>
    url.set({ store: elements.store.value, state: elements.state.value, view: elements.view.value, page: 1 }),
  );
  byId("replica-explain").addEventListener("click", () => ask.choose(byId("replica").dataset.store));
  byId("replica-copy").addEventListener("click", () => {
    const { store, node } = byId("replica").dataset;
    copy(asCurl(`${reports}/lag?${new URLSearchParams({ store, node })}`), byId("replica-copy"));
  });
}

document.documentElement.dataset.scripts = "";
startMain();
startKeys(url);
startTheme(byId("theme"), () => [lagCurve, freshnessCurve, openedCurve].forEach((curve) => curve.redraw()));
lastHour.load();
storeHour.load();
openedHour.load();
const hearAnew = startFeed(() => `${ownPage}changes${linkTo(url.query)}`, INTERVAL_MS, {
  page: timed,
  heard(generatedAt) {
    const time = byId("now").querySelector("time");
    time.dateTime = time.title = generatedAt;
    setText(time, clock(generatedAt));
    if (byId("live").dataset.state !== "live") silent(false);
  },
  silent,
});
