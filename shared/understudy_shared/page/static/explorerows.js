// The rows of a list of keys: one stop for Tab, arrows to move, and a click or Enter opens the key.

import { shown, table } from "./answer.js";
import { element } from "./dom.js";
import { fieldsOf } from "./keytext.js";
import { number } from "./words.js";

const MOVES = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };
const MAX_CHARS = 100;

// A link, so that it can be sent or opened beside the page. Its text is the first field of the key.
function rowLink(row, field, link) {
  const key = JSON.stringify(row.key);
  const [whole = "(the only key)"] = Object.values(row.key);
  const first = field?.part ? (whole?.[field.part] ?? whole) : whole;
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

// Returns the table of these rows: the columns of the key, then what it has. A window has two columns. `sort` has the
// order of now and a function that chooses another one.
export function tableOf(store, rows, link, sort) {
  const value = store.result?.length ? "result" : "value";
  const columns = store.kind === "value" ? store[value] : [];
  const fields = fieldsOf(store.key);
  const heads = store.key.length ? fields.map((each) => sortHead(store, "key", each, sort)) : ["key"];
  heads.push(...columns.map((each) => sortHead(store, value, { column: each.name, label: each.name, ...each }, sort)));
  const cells = rows.map((row) => {
    const content = row[value] ?? {};
    const texts = store.kind === "value" && !row.problem ? columns.map(({ name }) => brief(content[name])) : [besides(row)];
    const ofKey = fields.slice(1).map(({ column, part }) => brief(part ? row.key[column]?.[part] : row.key[column]));
    return [rowLink(row, fields[0], link), ...ofKey, ...texts];
  });
  return table(store.kind === "value" ? heads : [...heads, "holds"], cells);
}

// A press orders all keys by the column, the greatest value or the first key first; the next one turns the order around.
function sortHead(store, part, { column, label, type }, { order, choose }) {
  if (store.kind !== "value" || /^(array|map)</.test(type)) return label;
  const isElsewhere = ["key", "value", "result"].some((other) => other !== part && store[other]?.some(({ name }) => name === column));
  const name = isElsewhere ? `${part}.${column}` : column;
  const [up, down] = [name, `-${name}`];
  const first = part === "key" ? up : down;
  const next = order === first ? (first === up ? down : up) : first;
  const button = element("button", { type: "button", class: "sort", title: `Order by ${label}` }, label);
  button.addEventListener("click", () => choose(next));
  const head = element("th", { scope: "col" }, button);
  if ([up, down].includes(order)) head.setAttribute("aria-sort", order === up ? "ascending" : "descending");
  return head;
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
