// The keys of a store in pages of one version. A page is filled by as many calls as it takes, within a time; where it
// is not full by then, the reader decides whether to go on.

import { call } from "./api.js";
import { refused, scrolled } from "./answer.js";
import { foldedCommands, scanPath } from "./commands.js";
import { element } from "./dom.js";
import { storePath } from "./paths.js";
import { orderText } from "./question.js";
import { startRows, tableOf } from "./explorerows.js";
import { clock, number } from "./words.js";

const PAGE_ROWS = 50;
const PATIENCE_MS = 2000;

// Shows a list in `place`, and what is said of it in `status`. `link` makes the link of a key, `open` opens one, `order`
// lists in another order.
export function startList(place, status, { link, open, order }) {
  const rows = startRows(place, open);
  let list = null; // { store, parameters, at, starts, index, page }
  let leaving = new AbortController();

  function begin(store, parameters) {
    list = { store, parameters, at: null, starts: [null], index: 0 };
    return show(0);
  }

  // Shows the page that begins at `starts[index]`. The first page of a list settles its version.
  async function show(index) {
    list.index = index;
    list.page = { rows: [], lookedAt: 0, next: list.starts[index], isEnd: false };
    await fill();
  }

  async function fill() {
    leaving.abort();
    leaving = new AbortController();
    const { signal } = leaving;
    const mine = list;
    const { page } = list;
    const untilMs = performance.now() + PATIENCE_MS;
    place.setAttribute("aria-busy", "true");
    do {
      const { isGood, document } = await call(scanPath(mine.store.store, asked()), { signal });
      if (signal.aborted) return;
      if (!isGood) return fail(document);
      mine.at = document;
      page.rows.push(...document.rows);
      page.lookedAt += document.explain?.looked_at ?? 0;
      page.next = document.next_cursor;
      page.isEnd = page.next === null;
    } while (!page.isEnd && page.rows.length < PAGE_ROWS && performance.now() < untilMs);
    draw();
  }

  function asked() {
    const { parameters, at, page } = list;
    const limit = PAGE_ROWS - page.rows.length;
    const found = { ...parameters, limit, longs: "string", explain: "true" };
    if (page.next !== null) found.cursor = page.next;
    else if (at !== null) found.snapshot = at.position;
    return found;
  }

  function draw() {
    const { store, page, index, starts } = list;
    const isFull = page.rows.length >= PAGE_ROWS && !page.isEnd;
    if (isFull) starts[index + 1] = page.next;
    const focused = focusIn(place, status);
    place.removeAttribute("aria-busy");
    status.replaceChildren(element("p", { class: "actions" }, said(list), action("Newest version", () => begin(store, list.parameters))));
    const buttons = [
      action("Previous", () => show(list.index - 1), index > 0),
      action("Next", () => show(list.index + 1), isFull),
      ...(page.isEnd || isFull ? [] : [action("Look further", fill)]),
    ];
    place.replaceChildren(
      ...(page.rows.length ? [scrolled(`Keys of ${store.store}`, tableOf(store, page.rows, link, { order: orderText(list.parameters), choose: order }))] : []),
      element("p", { class: "actions" }, ...buttons),
      files(store, list.parameters),
      foldedCommands(scanPath(store.store, { ...list.parameters, limit: "1000" })),
    );
    rows.drawn();
    if (focused !== null) focusAgain(focused, place, status);
  }

  function fail(problem) {
    const focused = focusIn(place, status);
    place.removeAttribute("aria-busy");
    place.replaceChildren();
    const buttons = [action("Try again", fill)];
    if (list.at !== null) buttons.push(action("Newest version", () => begin(list.store, list.parameters)));
    status.replaceChildren(...refused(problem), element("p", { class: "actions" }, ...buttons));
    if (focused !== null) focusAgain(focused, status);
  }

  return {
    begin,
    mark: rows.mark,
    focusRow: rows.focusRow,
    // The version of the list, for what is read beside it; null before it is known.
    get version() {
      return list?.at?.version ?? null;
    },
    clear() {
      leaving.abort();
      list = null;
      place.replaceChildren();
      status.replaceChildren();
    },
  };
}

function said({ store, parameters, at, index, page }) {
  const of = `version ${number(at.version)}, committed ${at.committed_at ? clock(at.committed_at) : "?"}`;
  const isFiltered = "where" in parameters || "prefix" in parameters;
  const first = index * PAGE_ROWS;
  // A reader of some keys is not told how many others were looked at.
  const among = page.lookedAt ? ` among the ${number(page.lookedAt)} that were looked at` : "";
  if (page.rows.length > 0) {
    const more = page.isEnd || page.rows.length >= PAGE_ROWS ? "" : ` so far${among}`;
    const by = parameters.order ? ` by ${parameters.order}` : "";
    const range = `Keys ${number(first + 1)} to ${number(first + page.rows.length)}${by}`;
    return `${range}${page.isEnd ? ", the last" : ""}${more}: ${of}.`;
  }
  if (!page.isEnd) return `No key matches${among} so far: ${of}.`;
  if (first > 0) return `No more keys: ${of}.`;
  return isFiltered ? `No key of ${store.store} matches: ${of}.` : `${store.store} has no keys: ${of}.`;
}

const FILES = { Parquet: "parquet", Arrow: "arrow", CSV: "csv", NDJSON: "ndjson" };

// Links to all keys that the question matches, as files.
function files(store, { order: _, reverse: __, ...question }) {
  const query = `${new URLSearchParams(question)}`;
  const links = Object.entries(FILES).flatMap(([name, ending]) => {
    const href = `${storePath(store.store)}.${ending}${query && `?${query}`}`;
    return [" ", element("a", { href, download: `${store.store}.${ending}` }, name)];
  });
  return element("p", { class: "quiet" }, "As a file:", ...links);
}

// The text of the element that has the focus, which drawing would take from it.
function focusIn(...places) {
  const { activeElement } = document;
  return places.some((place) => place.contains(activeElement)) ? activeElement.textContent : null;
}

function focusAgain(text, ...places) {
  const buttons = places.flatMap((place) => [...place.querySelectorAll("button")]);
  (buttons.find((button) => button.textContent === text) ?? buttons[0])?.focus();
}

// A button that cannot be used now keeps its place and the focus.
function action(text, act, isPossible = true) {
  const button = element("button", { type: "button" }, text);
  if (!isPossible) button.setAttribute("aria-disabled", "true");
  else button.addEventListener("click", act);
  return button;
}
