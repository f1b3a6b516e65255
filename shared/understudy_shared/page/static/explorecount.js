// The exact number of keys that a question matches, counted page by page; a long count asks whether to go on.

import { refused } from "./answer.js";
import { call } from "./api.js";
import { element } from "./dom.js";
import { storePath } from "./paths.js";
import { number } from "./words.js";

const PATIENCE_MS = 5000;

export function startCount(place) {
  let turn = 0;

  // Counts at one version, from `cursor` on, and says how many there are so far.
  async function count(store, parameters, cursor = null) {
    turn += 1;
    const mine = turn;
    const untilMs = performance.now() + PATIENCE_MS;
    let next = cursor;
    do {
      const query = new URLSearchParams(next === null ? parameters : { ...parameters, cursor: next });
      const { isGood, document } = await call(`${storePath(store)}/count?${query}`);
      if (mine !== turn) return;
      if (!isGood) return place.replaceChildren(...refused(document));
      next = document.next_cursor;
      const found = `${number(document.count)} ${document.count === 1 ? "key" : "keys"}`;
      const said = `${found}${next === null ? "" : " so far"}, counted at version ${number(document.version)}.`;
      place.replaceChildren(element("p", {}, said));
    } while (next !== null && performance.now() < untilMs);
    if (next === null) return;
    const more = element("button", { type: "button" }, "Count further");
    more.addEventListener("click", () => count(store, parameters, next));
    place.lastChild.append(" ", more);
  }

  return {
    count,
    clear() {
      turn += 1;
      place.replaceChildren();
    },
  };
}
