// The key that is open in Explore: what a lookup says of it, and its history over the versions that Spark retains.

import { factsOf, refused, scrolled, shown, table } from "./answer.js";
import { call } from "./api.js";
import { commandLine, foldedCommands, historyPath, lookupCommand, lookupPath } from "./commands.js";
import { element } from "./dom.js";
import { fieldsOf } from "./keytext.js";
import { storePath } from "./paths.js";
import { isNumeric, stepPlot } from "./plot.js";
import { clock, number } from "./words.js";

const HISTORY_MS = 30_000;
const MAX_PLOTS = 4;

export function startKey(place, close) {
  let turn = 0;

  // Opens a key of a store, at a version where one is known. A version that is gone is offered as the newest.
  async function open(store, key, version) {
    turn += 1;
    const mine = turn;
    const bounds = version === null ? {} : { version };
    const began = performance.now();
    const { document } = await call(lookupPath(store.store, key, { ...bounds, longs: "string" }));
    if (mine !== turn) return;
    const parts = "found" in document ? factsOf(document, performance.now() - began) : refused(document);
    const command = commandLine("CLI", lookupCommand(store.store, key, bounds));
    const again = element("button", { type: "button" }, "Newest version");
    again.addEventListener("click", () => open(store, key, null));
    const history = element("div", { "aria-live": "polite" });
    const ask = element("button", { type: "button" }, "Show its history");
    ask.addEventListener("click", () => showHistory(store, key, history, ask));
    const rest = withoutWindow(store, key);
    const windows = element("button", { type: "button" }, "Show its windows");
    windows.addEventListener("click", () => showWindows(store, rest, history));
    place.replaceChildren(
      head(key),
      ...parts,
      foldedCommands(lookupPath(store.store, key, bounds), command),
      element("p", { class: "actions" }, ...(version === null ? [] : [again]), ask, ...(rest === null ? [] : [windows])),
      history,
    );
    place.hidden = false;
    place.focus();
    place.scrollIntoView({ block: "nearest" });
  }

  function head(key) {
    const button = element("button", { type: "button" }, "Close");
    button.addEventListener("click", close);
    return element("p", { class: "opened" }, element("b", {}, wordsOf(key)), button);
  }

  async function showHistory(store, key, place, button) {
    const mine = turn;
    const parameters = { key, longs: "string" };
    const pages = [];
    button.remove();
    place.replaceChildren(element("p", { class: "quiet" }, "Reading its versions…"));
    for (let from = null; ; from = pages.at(-1).next_from) {
      const path = historyPath(store.store, from === null ? parameters : { ...parameters, from });
      const { isGood, document } = await call(path, { timeoutMs: HISTORY_MS });
      if (mine !== turn) return;
      if (!isGood) {
        const again = element("button", { type: "button" }, "Try again");
        again.addEventListener("click", () => showHistory(store, key, place, button));
        place.replaceChildren(...refused(document), element("p", { class: "actions" }, again));
        return;
      }
      pages.push(document);
      if (document.next_from === null) break;
    }
    place.replaceChildren(...historyParts(store, pages, historyPath(store.store, parameters)));
  }

  async function showWindows(store, key, place) {
    const mine = turn;
    const path = `${storePath(store.store)}/windows?${new URLSearchParams({ key, longs: "string", limit: "1000" })}`;
    const { isGood, document } = await call(path);
    if (mine !== turn) return;
    place.replaceChildren(...(isGood ? windowParts(store, document) : refused(document)), foldedCommands(path));
  }

  return {
    open,
    close() {
      turn += 1;
      place.hidden = true;
      place.replaceChildren();
    },
  };
}

// The key without its window, as JSON; null for a store without windows.
function withoutWindow(store, key) {
  const column = fieldsOf(store.key).find(({ part }) => part === "start")?.column;
  try {
    const { [column]: window, ...rest } = JSON.parse(key);
    return store.kind !== "value" || window === undefined ? null : JSON.stringify(Object.values(rest));
  } catch {
    return null;
  }
}

function windowParts(store, { windows, version, next_cursor: more }) {
  const part = store.result?.length ? "result" : "value";
  const names = store[part].map(({ name }) => name);
  const rows = windows.map((each) => [each.start, each.end, each.state, ...names.map((name) => shown(each[part]?.[name] ?? null))]);
  const title = `${number(windows.length)}${more ? " or more" : ""} windows at version ${number(version)}`;
  return [element("h3", {}, title), scrolled("Windows of the key", table(["start", "end", "state", ...names], rows))];
}

// The columns of a key. A link may hold anything: then that is shown, and the lookup says what is wrong.
function wordsOf(key) {
  try {
    return Object.values(JSON.parse(key)).map(shown).join(", ") || key;
  } catch {
    return key;
  }
}

// A page begins with what its first version holds, which is no change where the page before ended with the same.
function entriesOf(pages) {
  const content = ({ version, committed_at: _, watermark: __, ...rest }) => JSON.stringify(rest);
  const all = pages.flatMap((page) => page.versions);
  return all.filter((entry, index) => index === 0 || content(entry) !== content(all[index - 1]));
}

function historyParts(store, pages, path) {
  const entries = entriesOf(pages);
  const [first, last] = [pages[0].from, pages.at(-1).to];
  const part = store.result?.length ? "result" : "value";
  const columns = store.kind === "value" ? store[part] : [];
  const plots = columns.filter(({ type }) => isNumeric(type)).map(({ name }) => stepPlot(name, pointsOf(entries, part, name), last));
  const heads = ["version", "committed", ...(columns.length ? columns.map(({ name }) => name) : ["holds"])];
  const rows = entries.map((entry) => [number(entry.version), entry.committed_at ? clock(entry.committed_at) : "?", ...cells(entry)]);
  function cells(entry) {
    const absent = columns.length ? columns.map(() => "–") : ["–"];
    if (!entry.found) return ["absent", ...absent.slice(1)];
    return columns.length ? columns.map(({ name }) => shown(entry[part]?.[name] ?? null)) : [contentOf(entry)];
  }
  return [
    element("h3", {}, `Versions ${number(first)} to ${number(last)}: ${changes(entries.length - 1)}`),
    ...plots.filter(Boolean).slice(0, MAX_PLOTS),
    scrolled("History of the key", table(heads, rows)),
    foldedCommands(path),
  ];
}

const changes = (count) => (count === 1 ? "1 change" : `${number(count)} changes`);

const pointsOf = (entries, part, name) => entries.map((entry) => [entry.version, entry[part]?.[name] ?? null]);

const META = ["found", "partition", "version", "committed_at", "watermark", "marks", "position"];
const contentOf = (entry) =>
  Object.entries(entry).filter(([name]) => !META.includes(name)).map(([name, content]) => `${name} ${shown(content)}`).join(", ");
