// The table of the stores, and the histogram of how old the answers were.

import { sparkPath } from "./drawing.js";
import { byId, fill, keyed, setAttribute, setText } from "./dom.js";
import { linkTo } from "./url.js";
import { stalenessBars, storeSlots } from "./views.js";

export function updateStores(overview, query) {
  const body = byId("stores").tBodies[0];
  keyed(body, byId("t-store"), overview.stores, (store) => store.store, (row, store) => {
    const isChosen = store.store === query.store;
    fill(row, storeSlots(store));
    setAttribute(row, "aria-current", isChosen ? "true" : "");
    setAttribute(row.querySelector("a"), "href", linkTo(query, { store: isChosen ? "" : store.store, page: 1, open: "" }));
    setAttribute(row.querySelector("path"), "d", sparkPath(store.history));
  });
  byId("no-stores").hidden = overview.stores.length > 0;
}

export function updateServed(overview) {
  const bars = stalenessBars(overview.reads);
  keyed(byId("served").tBodies[0], byId("t-bar"), bars, (bar) => bar.label, (row, bar) => {
    const [label, , answers, share] = row.cells;
    setText(label, bar.label);
    setText(answers, bar.answers);
    setText(share, bar.share);
    setAttribute(row.querySelector("rect"), "width", `${bar.percent}%`);
  });
  byId("no-answers").hidden = bars.length > 0;
}

export function startStores(url) {
  byId("stores").addEventListener("click", (event) => {
    const link = event.target.closest('a[data-link="store"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { key } = link.closest("tr").dataset;
    url.set({ store: key === url.query.store ? "" : key, page: 1, open: "" });
  });
}
