// The keyboard: one stop for Tab in the grid, and arrows to move in it; Escape closes the open replica; "/" looks a key up.

import { byId } from "./dom.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// One cell takes part in the order of Tab. Called after each change: rows come and go.
export function rove(chosen = null) {
  const links = byId("grid").querySelectorAll("tbody a");
  const kept = chosen ?? byId("grid").querySelector('tbody a[tabindex="0"]') ?? links[0];
  for (const link of links) {
    const wanted = link === kept ? 0 : -1;
    if (link.tabIndex !== wanted || !link.hasAttribute("tabindex")) link.tabIndex = wanted;
  }
}

function neighbour(link, [down, right]) {
  const cell = link.closest("td");
  let row = cell.parentElement;
  let index = cell.cellIndex;
  for (;;) {
    if (down) row = down > 0 ? row.nextElementSibling : row.previousElementSibling;
    index += right;
    const next = row?.cells[index];
    if (!next || index < 1) return null;
    const found = next.querySelector("a");
    if (found) return found;
  }
}

export function startKeys(url) {
  byId("grid").addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    const link = event.target.closest("tbody a");
    if (!move || !link) return;
    event.preventDefault();
    const next = neighbour(link, move);
    if (next) {
      rove(next);
      next.focus();
    }
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && url.query.open && !document.querySelector("dialog[open]")) {
      const place = url.query.open;
      url.set({ open: "" });
      const links = [...document.querySelectorAll(`a[data-place="${CSS.escape(place)}"]`)];
      links.find((link) => link.offsetParent !== null)?.focus(); // the grid and the table may both have it
    } else if (event.key === "/" && !event.target.closest("input, select, textarea, dialog")) {
      event.preventDefault();
      (byId("ask-columns").querySelector("input") ?? byId("ask-store")).focus();
    }
  });
}
