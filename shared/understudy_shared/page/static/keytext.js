// Keys as JSON, made of one field for each column. Numbers stay the text that the reader typed: a whole number of Spark
// has more digits than a number of JavaScript.

const WHOLE = ["tinyint", "smallint", "int", "bigint", "byte", "short", "integer", "long"];
const NESTED = /^(struct|array|map)</;
const WINDOW = /^struct<start:timestamp[^,]*,end:timestamp[^,]*>$/;

// The fields of a key: one for each column, two for a window.
export function fieldsOf(columns) {
  return columns.flatMap(({ name, type }) =>
    WINDOW.test(type)
      ? [
          { column: name, part: "start", label: `${name} start`, type: "timestamp" },
          { column: name, part: "end", label: `${name} end`, type: "timestamp" },
        ]
      : [{ column: name, part: "", label: name, type }],
  );
}

// Returns the text of a value as JSON, by the type of its column.
export function valueText(type, text) {
  if (NESTED.test(type)) {
    JSON.parse(text); // fails here instead of in the router, so that the message names the field
    return text;
  }
  if (WHOLE.includes(type) && /^-?\d+$/.test(text)) return text;
  if (["float", "double"].includes(type) && /^-?\d+(\.\d+)?([eE][-+]?\d+)?$/.test(text)) return text;
  if (type === "boolean" && /^(true|false)$/.test(text)) return text;
  return JSON.stringify(text);
}

// Returns the key as a JSON array in schema order. Throws an error that says what is wrong.
export function keyText(fields, texts) {
  const values = [];
  fields.forEach((field, index) => {
    const text = texts[index];
    if (text === "") throw new Error(`${field.label} is empty: fill it in, or write the key as JSON`);
    let value;
    try {
      value = valueText(field.type, text);
    } catch {
      throw new Error(`${field.label} is not JSON: a ${field.type} is written as JSON`);
    }
    if (field.part === "end") values.push(`${values.pop()},"end":${value}}`);
    else values.push(field.part === "start" ? `{"start":${value}` : value);
  });
  return `[${values.join(",")}]`;
}

// Returns the texts of the fields for a key given as JSON, or null when only JSON can express it.
export function textsOf(fields, json) {
  try {
    const key = JSON.parse(json);
    const parts = fields.map((field) => field.part);
    if (!Array.isArray(key) || parts.some(Boolean) || key.length !== fields.length) return null;
    return key.every((value) => typeof value === "string" && value !== "") ? key : null;
  } catch {
    return null;
  }
}

// Returns an example for each field, from a JSON array of examples in schema order.
export function examplesOf(columns, json) {
  try {
    const values = JSON.parse(json ?? "[]");
    return columns.flatMap(({ type }, index) => {
      const value = values[index] ?? "";
      if (WINDOW.test(type)) return [String(value.start ?? ""), String(value.end ?? "")];
      return [typeof value === "string" ? value : JSON.stringify(value)];
    });
  } catch {
    return [];
  }
}
