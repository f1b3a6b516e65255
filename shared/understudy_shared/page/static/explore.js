// Explore: which keys a store has, page by page, and how one came to be what it is. The question is in the URL.

import { refused } from "./answer.js";
import { call } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { startChanges } from "./explorechanges.js";
import { startCount } from "./explorecount.js";
import { startForm } from "./exploreform.js";
import { startKey } from "./explorekey.js";
import { startList } from "./explorelist.js";
import { storePath } from "./paths.js";
import { formOf, orderOf, parametersOf, urlOf } from "./question.js";
import { linkTo } from "./url.js";
import { number } from "./words.js";

const NOTHING = { update: () => {} };

export function startExplore(url) {
  const section = byId("explore");
  if (section === null || byId("explore-form") === null) return NOTHING; // switched off, or not granted
  const granted = JSON.parse(section.dataset.stores);
  const status = byId("explore-said");
  const form = startForm();
  const counter = startCount(byId("explore-counted"));
  const changes = startChanges(byId("explore-changes"));
  const list = startList(byId("explore-list"), status, {
    link: (row) => linkTo({ ...url.query, row }),
    open: (row) => url.set({ row }),
    order: (order) => again(order),
  });
  const key = startKey(byId("explore-key"), closeKey);
  let store = null; // the document of the store that is chosen
  let asked = questionOf({ explore: "", prefix: "", where: "", order: "" }); // the question of the URL that is followed
  let opened = "";
  let turn = 0;
  let isFollowing = false;

  function closeKey() {
    const { row } = url.query;
    url.set({ row: "" });
    list.focusRow(row);
  }

  // Shows the fields of a store, and about how many keys it has. Returns whether it is still the one that is wanted.
  async function choose(name, filled) {
    turn += 1;
    const mine = turn;
    store = null;
    list.clear();
    counter.clear();
    changes.clear();
    form.select.value = name;
    form.show(null, filled);
    setText(byId("explore-about"), "");
    if (name === "") return false;
    const path = storePath(name);
    const { isGood, document } = await call(path);
    if (mine !== turn) return false;
    if (!isGood) {
      status.replaceChildren(...refused(document));
      return false;
    }
    store = document;
    form.show(store, filled);
    call(`${path}/count?estimate=true`).then(({ isGood: isCounted, document: { count } }) => {
      if (mine === turn && isCounted) setText(byId("explore-about"), `about ${number(count)} keys`);
    });
    return true;
  }

  // Returns the parameters of what is filled in; null, and says why, where that is not a question.
  function parameters() {
    try {
      return parametersOf(store, form.filled());
    } catch (error) {
      const detail = error.message;
      status.replaceChildren(...refused({ title: "This is not a question", type: "bad-question", detail }));
      return null;
    }
  }

  form.form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (store === null) return status.replaceChildren(element("p", {}, "Choose a store first."));
    const found = parameters();
    if (found === null) return;
    counter.clear();
    changes.clear();
    if (event.submitter?.value === "count") return counter.count(store.store, found);
    if (event.submitter?.value === "changes") return changes.show(store);
    again(url.query.order);
  });
  form.select.addEventListener("change", () => {
    const question = { explore: form.select.value, prefix: "", where: "", order: "" };
    ask(question);
    choose(question.explore, formOf(question));
  });
  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && url.query.row) {
      event.preventDefault();
      closeKey();
    }
  });

  // Lists the keys of what is filled in, in this order.
  function again(order) {
    const found = parameters();
    if (found === null) return;
    ask({ explore: store.store, ...urlOf(form.filled()), order });
    list.begin(store, { ...found, ...orderOf(order) });
  }

  // Writes a question into the URL, as the one that is shown already.
  function ask(question) {
    asked = questionOf(question);
    url.set({ ...question, row: "" });
  }

  // Shows what the URL asks: a link that was opened, or a step in the history of the browser.
  async function follow() {
    if (isFollowing) return;
    isFollowing = true;
    while (questionOf(url.query) !== asked) {
      const { query } = url;
      asked = questionOf(query);
      if (!(await choose(query.explore, formOf(query)))) continue;
      const found = parameters();
      if (found !== null) await list.begin(store, { ...found, ...orderOf(query.order) });
    }
    isFollowing = false;
    if (url.query.row === opened) return;
    opened = url.query.row;
    list.mark(opened);
    if (opened && store !== null) key.open(store, opened, list.version);
    else key.close();
  }

  return {
    // The stores of the page may have changed, or the URL.
    update() {
      const names = [...byId("ask-store").options].map((each) => each.value);
      form.offer(names.filter((name) => granted.includes("*") || granted.includes(name)));
      if (names.length) follow();
    },
  };
}

const questionOf = ({ explore, prefix, where, order }) => JSON.stringify([explore, prefix, where, order]);
