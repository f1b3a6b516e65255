// What Explore asks: the columns of a store that a filter may name, and the question as parameters of the API.
// Values stay the texts that the reader typed, in the form and in the URL of the page; their column's type says how they
// are written as JSON.

import { fieldsOf, keyText, valueText } from "./keytext.js";

const NULLS = ["is_null", "not_null"];
const COMPARISONS = ["=", "!=", "<", "<=", ">", ">=", "in", ...NULLS];

export const takesValue = (op) => !NULLS.includes(op);

// The columns of a filter: those of the key, and those of the value where a key has one.
export function columnsOf(store) {
  const parts = { key: store.key, ...(store.kind === "value" && { value: store.value, result: store.result ?? [] }) };
  const found = Object.entries(parts).flatMap(([part, columns]) =>
    fieldsOf(columns).map((field) => {
      const short = field.part ? `${field.column}.${field.part}` : field.column;
      return { part, short, type: field.type, ops: /^(struct|array|map)</.test(field.type) ? NULLS : COMPARISONS };
    }),
  );
  const count = (short) => found.filter((each) => each.short === short).length;
  return found.map((each) => ({ ...each, name: count(each.short) > 1 ? `${each.part}.${each.short}` : each.short }));
}

// Returns the prefix as a JSON array, or "" without one. Throws an error that names the column.
export function prefixText(store, texts) {
  const fields = fieldsOf(store.key);
  const count = texts.findLastIndex((text) => text !== "") + 1;
  return count === 0 ? "" : keyText(fields.slice(0, count), texts.slice(0, count));
}

// Returns the comparisons as a JSON array, or "" without any. Throws an error that names the column.
export function whereText(store, filters) {
  const columns = columnsOf(store);
  const terms = filters.map(([name, op, text]) => {
    const column = columns.find((each) => each.name === name);
    if (column === undefined) throw new Error(`there is no column ${name} in ${store.store}`);
    const head = `${JSON.stringify(name)},${JSON.stringify(op)}`;
    if (!takesValue(op)) return `[${head}]`;
    const values = (op === "in" ? text.split(",") : [text]).map((each) => valueOf(column, each.trim()));
    return `[${head},${op === "in" ? `[${values.join(",")}]` : values[0]}]`;
  });
  return terms.length === 0 ? "" : `[${terms.join(",")}]`;
}

function valueOf({ name, type }, text) {
  if (text === "") throw new Error(`${name} is compared with nothing: write a value, or choose is_null`);
  return valueText(type, text);
}

// Returns the parameters of a scan or a count for what the form holds.
export function parametersOf(store, { prefix, filters }) {
  const found = { prefix: prefixText(store, prefix), where: whereText(store, filters) };
  return Object.fromEntries(Object.entries(found).filter(([, text]) => text !== ""));
}

// The order of the URL, `-` in front of a descending one, as parameters of a scan, and back.
export function orderOf(order) {
  if (order === "") return {};
  return order.startsWith("-") ? { order: order.slice(1), reverse: "true" } : { order };
}

export const orderText = ({ order = "", reverse }) => (reverse ? `-${order}` : order);

// The same as the URL of the page holds it, and back. A link that does not parse asks for all keys.
export const urlOf = ({ prefix, filters }) => ({
  prefix: prefix.some(Boolean) ? JSON.stringify(prefix) : "",
  where: filters.length ? JSON.stringify(filters) : "",
});

export function formOf({ prefix, where }) {
  const isTexts = (list) => Array.isArray(list) && list.every((each) => typeof each === "string");
  const [texts, filters] = [prefix, where].map(listOf);
  return { prefix: isTexts(texts) ? texts : [], filters: filters.filter((each) => isTexts(each) && each.length === 3) };
}

function listOf(text) {
  try {
    const found = JSON.parse(text || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}
