// The replicas as a grid or as a table, the filter, the pages; replicas.py shows the same at first.

import { ROLES, cellView, kindOf, stateWords, wantedReplicas, wantedRows } from "./cells.js";
import { byId, element, keyed, setAttribute, setText } from "./dom.js";
import { folded } from "./folding.js";
import { linkTo } from "./url.js";
import { age as ageText, count, number } from "./words.js";

const MAX_COLUMNS = 24;
const GRID_ROWS = 500;
const TABLE_ROWS = 200;
const PAGER_REACH = 5;

export function updateReplicas(overview, query) {
  const { grid } = overview;
  const isTable = query.view === "table";
  byId("replicas").dataset.view = query.view;
  byId("matrix").hidden = isTable;
  byId("listed").hidden = !isTable;
  const wanted = isTable ? wantedReplicas(grid.rows, query) : wantedRows(grid.rows, query);
  const found = isTable ? wanted : folded(wanted);
  const [first, last, pages] = pageBounds(found.length, isTable ? TABLE_ROWS : GRID_ROWS, query.page);
  const shown = found.slice(first, last);
  if (isTable) updateTable(shown, query);
  else updateGrid(grid, found, shown, query);
  const folds = isTable ? "" : foldWords(wanted.length, found.length);
  const noun = isTable ? "replica" : folds ? "row" : "partition";
  setText(byId("shown"), folds + shownWords(grid, first, last, found.length, noun));
  byId("no-replicas").hidden = found.length > 0;
  setText(byId("no-replicas"), query.state === "unwell" ? "Every replica is well." : "No replica is like that.");
  updatePager(query, pages);
  updateFilter(overview.stores, query);
}

function pageBounds(total, size, page) {
  const pages = Math.max(1, Math.ceil(total / size));
  const first = (Math.min(page, pages) - 1) * size;
  return [first, Math.min(total, first + size), pages];
}

function shownWords(grid, first, last, total, noun) {
  let words = count(total, noun);
  if (last - first < total) words = `${number(first + 1)} to ${number(last)} of ${words}`;
  if (grid.order === "worst") {
    words += `; these are the worst of ${count(grid.total, "partition")}, the CSV below has all`;
  }
  return words;
}

const foldWords = (partitions, rows) =>
  rows < partitions ? `${count(partitions, "partition")}, those that are well and lie alike in one row: ` : "";

function columnsOf(grid, rows) {
  if (grid.columns.length <= MAX_COLUMNS) return grid.columns;
  const widest = rows.reduce((most, row) => Math.max(most, Object.keys(row.cells).length), rows.length ? 0 : 1);
  return Array.from({ length: widest }, (_, index) => `replica ${index + 1}`);
}

function updateGrid(grid, found, shown, query) {
  const columns = columnsOf(grid, found);
  const isPacked = grid.columns.length > MAX_COLUMNS;
  const heads = byId("columns");
  if ([...heads.cells].slice(1).map((cell) => cell.textContent).join("\n") !== columns.join("\n")) {
    const names = columns.map((name) => element("th", { scope: "col" }, name));
    heads.replaceChildren(heads.cells[0], ...names);
  }
  keyed(byId("grid").tBodies[0], GRID_ROW, shown, (row) => `${row.store}/${row.partition}`, (tr, row) => {
    setText(tr.cells[0], `${row.store} ${row.label}`);
    while (tr.cells.length > columns.length + 1) tr.lastElementChild.remove();
    while (tr.cells.length < columns.length + 1) tr.append(element("td"));
    const nodes = isPacked ? Object.keys(row.cells).sort() : columns;
    columns.forEach((_, index) => updateCell(tr.cells[index + 1], row, nodes[index], isPacked, query));
  });
}

// What scripts clone for a row of the grid: its cells depend on the nodes.
const GRID_ROW = document.createElement("template");
GRID_ROW.content.append(element("tr", {}, element("th", { scope: "row" })));

function updateCell(td, row, nodeId, isPacked, query) {
  const cell = row.cells[nodeId];
  if (!cell) {
    if (!td.querySelector(".none")) td.replaceChildren(element("span", { class: "none" }, "·"));
    return;
  }
  let link = td.querySelector("a");
  if (!link) {
    link = element("a", { class: "cell" });
    td.replaceChildren(link);
  }
  const view = cellView(row.store, row.label, nodeId, cell);
  const place = `${row.store}/${row.partition}/${nodeId}`;
  setText(link, isPacked ? `${nodeId} ${view.text}` : view.text);
  setAttribute(link, "aria-label", isPacked ? `${nodeId} ${view.name}` : view.name);
  setAttribute(link, "data-state", view.state);
  setPlace(link, place, query);
}

function setPlace(link, place, query) {
  if (link.dataset.place !== place || link.query !== query) {
    link.dataset.place = place;
    link.query = query;
    setAttribute(link, "href", linkTo(query, { open: place }));
  }
  setAttribute(link, "aria-current", place === query.open ? "true" : "");
}

function updateTable(shown, query) {
  keyed(byId("table").tBodies[0], byId("t-replica"), shown, (each) => each.id, (tr, each) => {
    const { cell } = each;
    const view = cellView(each.store, each.partition, each.nodeId, cell);
    const [store, partition, node, role, state, lag, lagMs, age] = tr.cells;
    setText(store, each.store);
    setText(partition, String(each.partition));
    setText(node, each.nodeId);
    setText(role, ROLES[cell.role] ?? cell.role);
    const link = state.querySelector("a");
    setText(link, stateWords(cell, kindOf(cell)));
    setAttribute(link, "data-state", view.state);
    setPlace(link, each.id, query);
    setText(lag, number(cell.lag));
    setText(lagMs, ageText(cell.lag_ms));
    setText(age, ageText(cell.age_ms));
  });
}

function updatePager(query, pages) {
  const pager = byId("pager");
  pager.hidden = pages === 1;
  if (pages === 1) return;
  const here = Math.min(query.page, pages);
  const numbers = [];
  for (let page = 1; page <= pages; page += 1) {
    if (page === 1 || page === pages || Math.abs(page - here) <= PAGER_REACH) numbers.push(page);
  }
  const links = numbers.map((page) => {
    const link = element("a", { href: linkTo(query, { page }) }, String(page));
    link.dataset.page = page;
    setAttribute(link, "aria-current", page === here ? "page" : "");
    return link;
  });
  if (pager.textContent.trim().split(/\s+/).join() !== numbers.join() || pager.here !== here || pager.query !== query) {
    pager.here = here;
    pager.query = query;
    pager.replaceChildren(...links.flatMap((link) => [" ", link]));
  }
}

function updateFilter(stores, query) {
  const form = byId("filter");
  const names = ["", ...stores.map((store) => store.store)];
  const select = form.elements.store;
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name || "all")));
  }
  for (const name of ["store", "state", "view"]) {
    const field = form.elements[name];
    if (field.value !== query[name]) field.value = query[name];
  }
}

export function startReplicas(url) {
  const form = byId("filter");
  byId("apply").hidden = true;
  const choose = () => {
    const { store, state, view } = form.elements;
    url.set({ store: store.value, state: state.value, view: view.value, page: 1 });
  };
  form.addEventListener("change", choose);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    choose();
  });
  byId("replicas").addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    const link = event.target.closest("a");
    if (link?.dataset.place) url.set({ open: link.dataset.place });
    else if (link?.dataset.page) url.set({ page: Number(link.dataset.page) });
    else if (link?.dataset.link === "close") url.set({ open: "" });
    else return;
    event.preventDefault();
  });
}
