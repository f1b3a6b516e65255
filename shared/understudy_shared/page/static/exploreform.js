// The form of Explore: a store, the first columns of its keys, and filters by its columns.

import { byId, element } from "./dom.js";
import { fieldsOf } from "./keytext.js";
import { columnsOf, takesValue } from "./question.js";

const MAX_FILTERS = 8;

export function startForm() {
  const form = byId("explore-form");
  const select = form.elements.store;
  const prefix = byId("explore-prefix");
  const filters = byId("explore-filters");
  const more = byId("explore-more");
  let columns = [];

  function filterRow([name, op, text] = ["", "", ""]) {
    const column = element("select", { "aria-label": "column" }, ...columns.map((each) => option(each.name)));
    const operator = element("select", { "aria-label": "operator" });
    const value = element("input", { value: text, size: 16, spellcheck: false, "aria-label": "value" });
    const remove = element("button", { type: "button", "aria-label": "Remove the filter" }, "Remove");
    const row = element("div", { class: "fields filter", role: "group", "aria-label": "Filter" }, column, operator, value, remove);
    const showValue = () => {
      value.hidden = !takesValue(operator.value);
      const { type } = chosen(column);
      value.placeholder = operator.value === "in" ? `${type}, ${type}` : type;
    };
    const showOperators = () => {
      const wanted = operator.value;
      operator.replaceChildren(...chosen(column).ops.map(option));
      if (chosen(column).ops.includes(wanted)) operator.value = wanted;
      showValue();
    };
    if (columns.some((each) => each.name === name)) column.value = name;
    showOperators();
    if (op) operator.value = op;
    showValue();
    column.addEventListener("change", showOperators);
    operator.addEventListener("change", showValue);
    remove.addEventListener("click", () => {
      row.remove();
      showMore();
      more.focus();
    });
    return row;
  }

  const option = (text) => element("option", { value: text }, text);
  const chosen = (column) => columns.find((each) => each.name === column.value) ?? { ops: [], type: "" };

  function showMore() {
    more.hidden = columns.length === 0 || filters.children.length >= MAX_FILTERS;
  }

  more.addEventListener("click", () => {
    const row = filterRow();
    filters.append(row);
    showMore();
    row.querySelector("select").focus();
  });
  more.hidden = true;

  return {
    form,
    select,
    // Offers these stores; what the reader has chosen stays.
    offer(names) {
      const there = [...select.options].slice(1).map((each) => each.value);
      if (JSON.stringify(there) === JSON.stringify(names)) return;
      const { value } = select;
      select.replaceChildren(select.options[0], ...names.map(option));
      if (names.includes(value)) select.value = value;
    },
    // Shows the fields of a store, filled in; null: of no store.
    show(store, { prefix: texts, filters: terms }) {
      columns = store === null ? [] : columnsOf(store);
      const fields = store === null ? [] : fieldsOf(store.key);
      prefix.replaceChildren(...fields.map((field, index) => prefixField(field, texts[index] ?? "")));
      filters.replaceChildren(...terms.slice(0, MAX_FILTERS).map(filterRow));
      showMore();
    },
    // Returns what is filled in, as texts.
    filled() {
      const texts = [...prefix.querySelectorAll("input")].map((input) => input.value.trim());
      const terms = [...filters.children].map((row) => {
        const [name, op] = [...row.querySelectorAll("select")].map((each) => each.value);
        return [name, op, takesValue(op) ? row.querySelector("input").value.trim() : ""];
      });
      return { prefix: texts, filters: terms };
    },
  };
}

function prefixField({ label, type }, value) {
  const input = element("input", { value, size: 14, spellcheck: false, placeholder: "any" });
  input.dataset.prefix = label;
  return element("label", {}, element("span", {}, `prefix: ${label} `, element("span", { class: "hint" }, type)), input);
}
