// The rows of a list of keys: one stop for Tab, arrows to move, and a click or Enter opens the key.

import { shown, table } from "./answer.js";
import { element } from "./dom.js";
import { number } from "./words.js";

const MOVES = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };
const MAX_CHARS = 100;

// A link, so that it can be sent or opened beside the page. Its text is the first column of the key.
function rowLink(row, link) {
  const key = JSON.stringify(row.key);
  const [first = "(the only key)"] = Object.values(row.key);
  const made = element("a", { href: link(key) }, shown(first) || "(empty)");
  made.dataset.row = key;
  return element("th", { scope: "row" }, made);
}

export function startRows(place, open) {
  let marked = "";
  const links = () => [...place.querySelectorAll("a[data-row]")];

  function rove(kept) {
    for (const each of links()) each.tabIndex = each === kept ? 0 : -1;
  }

  function mark(key) {
    marked = key;
    for (const each of links()) each.closest("tr").toggleAttribute("aria-current", false);
    const found = links().find((each) => each.dataset.row === key);
    found?.closest("tr").setAttribute("aria-current", "true");
  }

  place.addEventListener("keydown", (event) => {
    const at = links().indexOf(event.target);
    const move = MOVES[event.key];
    if (at < 0 || move === undefined) return;
    event.preventDefault();
    const next = links()[Math.min(Math.max(at + move, 0), links().length - 1)];
    rove(next);
    next.focus();
  });
  place.addEventListener("click", (event) => {
    const link = event.target.closest("tbody tr")?.querySelector("a[data-row]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !getSelection().isCollapsed) return;
    event.preventDefault();
    event.stopPropagation(); // the page follows links by the URL alone
    rove(link);
    open(link.dataset.row);
  });

  return {
    mark,
    drawn() {
      const kept = links().find((each) => each.dataset.row === marked) ?? links()[0];
      rove(kept);
      mark(marked);
    },
    focusRow(key) {
      links().find((each) => each.dataset.row === key)?.focus();
    },
  };
}

// Returns the table of these rows: the columns of the key, then what it has.
export function tableOf(store, rows, link) {
  const value = store.result?.length ? "result" : "value";
  const columns = store.kind === "value" ? store[value] : [];
  const ofKey = store.key.length ? store.key.map((each) => each.name) : ["key"];
  const heads = [...ofKey, ...columns.map((each) => each.name)];
  const cells = rows.map((row) => {
    const content = row[value] ?? {};
    const texts = store.kind === "value" && !row.problem ? columns.map(({ name }) => brief(content[name])) : [besides(row)];
    return [rowLink(row, link), ...store.key.slice(1).map(({ name }) => brief(row.key[name])), ...texts];
  });
  return table(store.kind === "value" ? heads : [...heads, "holds"], cells);
}

const brief = (value) => {
  const text = shown(value ?? null);
  return text.length > MAX_CHARS ? `${text.slice(0, MAX_CHARS)}…` : text;
};

// What a row says where a key has no one value: how many elements of each sort, or why it cannot be read.
function besides(row) {
  if (row.problem) return `cannot be read: ${row.problem.detail ?? row.problem.title}`;
  const { key, next_cursor: more, ...parts } = row;
  const words = Object.entries(parts).map(([name, part]) =>
    Array.isArray(part) ? `${number(part.length)}${more ? " or more" : ""} ${name}` : `${name} ${brief(part)}`,
  );
  return words.join(", ");
}
