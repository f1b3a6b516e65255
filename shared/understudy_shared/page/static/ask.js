// The form that looks a key up, or explains it. The question is in the URL, so that a reader can send it to a colleague.

import { answered, explained, refused } from "./answer.js";
import { call } from "./api.js";
import { explainPath, lookupPath } from "./commands.js";
import { byId, element, setText } from "./dom.js";
import { examplesOf, fieldsOf, keyText, textsOf } from "./keytext.js";

const AGAIN_MS = 1000;
const BOUNDS = ["max_lag", "max_staleness_ms", "unknown_lag", "min_position"];

export function startAsk(url) {
  const form = byId("ask");
  const select = byId("ask-store");
  const place = byId("ask-columns");
  let shownFor = "";
  let fields = [];
  let asked = 0;
  let action = "get";
  let last = null;

  const store = () => {
    const { value, dataset } = select.selectedOptions[0] ?? {};
    return value === undefined ? null : { store: value, key: JSON.parse(dataset.columns), example: dataset.example || null };
  };
  const inputs = () => [...place.querySelectorAll("input[data-field]")];
  const jsonBox = () => byId("ask-json");

  function showFields(asJson = false, texts = []) {
    const chosen = store();
    fields = chosen ? fieldsOf(chosen.key) : [];
    const examples = chosen ? examplesOf(chosen.key, chosen.example) : [];
    const made = asJson
      ? [field("key as JSON", "an array in schema order", texts[0] ?? "", chosen?.example ?? "", 32)]
      : fields.map((each, index) => field(each.label, each.type, texts[index] ?? "", examples[index] ?? "", 14));
    const box = element("input", { type: "checkbox", id: "ask-json", checked: asJson });
    box.addEventListener("change", () => showFields(box.checked));
    place.replaceChildren(...made, element("label", { class: "check" }, box, " as JSON"));
    shownFor = signature(chosen);
  }

  function field(label, type, value, placeholder, size) {
    const input = element("input", { value, placeholder, size, spellcheck: false });
    input.dataset.field = label;
    const name = element("span", {}, `${label} `, element("span", { class: "hint" }, type));
    return element("label", {}, name, input);
  }

  function boundsGiven() {
    const bounds = {};
    for (const name of BOUNDS) {
      const { value } = form.elements[name];
      if (value.trim() !== "") bounds[name] = value.trim();
    }
    if (form.elements.require_active.checked) bounds.require_active = "true";
    return bounds;
  }

  function question() {
    const texts = inputs().map((input) => input.value.trim());
    let key = texts[0] ?? "[]";
    if (jsonBox()?.checked) JSON.parse(key);
    else key = keyText(fields, texts);
    return { store: select.value, key, bounds: boundsGiven() };
  }

  // Asks the question of the form once; "every second" repeats `last`, even while the reader types another one.
  async function ask({ keepUrl = false } = {}) {
    const answer = byId("answer");
    answer.hidden = false;
    try {
      last = { ...question(), action };
    } catch (error) {
      last = null;
      answer.replaceChildren(...refused({ title: "This is not a key", type: "bad-key", detail: error.message }));
      return;
    }
    if (!keepUrl) url.set({ ask: last.store, key: last.key });
    await run();
  }

  async function run() {
    const answer = byId("answer");
    asked += 1;
    const mine = asked;
    const parts = await replyTo(last);
    if (mine !== asked) return;
    const isOpen = answer.querySelector("details")?.open ?? false;
    answer.replaceChildren(...parts);
    const details = answer.querySelector("details");
    if (details) details.open = isOpen;
  }

  function repeat() {
    const isRead = byId("answer").contains(document.activeElement); // a new answer would take the focus from the old one
    if (byId("ask-repeat").checked && last !== null && !document.hidden && !isRead) run();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    action = event.submitter?.value ?? "get";
    ask();
  });
  select.addEventListener("change", () => showFields());
  byId("ask-bounds").addEventListener("input", () => {
    const words = Object.entries(boundsGiven()).map(([name, value]) => `${name}=${value}`);
    setText(byId("ask-bounds-said"), words.join(", ") || "none: any replica may answer");
  });
  setInterval(repeat, AGAIN_MS);
  byId("ask-repeat").addEventListener("change", (event) =>
    // The status is set once: else a screen reader would read the same answer each second.
    byId("answer").setAttribute("aria-live", event.target.checked ? "off" : "polite"),
  );

  return {
    // The stores may have changed; a field into which the reader types is left alone.
    update(query) {
      const names = [...select.options].map((option) => option.value);
      const isFirst = shownFor === "";
      if (isFirst && names.includes(query.ask)) select.value = query.ask;
      if (shownFor !== signature(store()) && names.length) showFields();
      if (isFirst && names.includes(query.ask) && query.key) {
        const texts = textsOf(fields, query.key);
        showFields(texts === null, texts ?? [query.key]);
        ask({ keepUrl: true });
      }
    },
    choose(name) {
      select.value = name;
      showFields();
      byId("ask").scrollIntoView({ block: "center" });
      (inputs()[0] ?? select).focus();
    },
  };
}

const signature = (store) => (store === null ? "" : JSON.stringify([store.store, store.key]));

// Whole numbers come as texts (`longs`): JavaScript would round those above 2^53.
async function replyTo(asking) {
  const path = asking.action === "explain" ? explainPath : lookupPath;
  const began = performance.now();
  const { isGood, document } = await call(path(asking.store, asking.key, { ...asking.bounds, longs: "string" }));
  if (asking.action === "explain" && isGood) return explained(asking, document);
  if ("found" in document) return answered(asking, document, performance.now() - began);
  return refused(document);
}
