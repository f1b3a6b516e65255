// Answers as elements: a lookup's value and age, an explanation's candidates, or a problem and its fix.

import { asCurl, commandLine, explainCommand, explainPath, lookupCommand, lookupPath } from "./commands.js";
import { element } from "./dom.js";
import { batches, duration, number } from "./words.js";

export function pairs(entries) {
  const list = element("dl", { class: "pairs" });
  for (const [name, text] of entries) list.append(element("dt", {}, name), element("dd", {}, text));
  return list;
}

const HERE = ["localhost", "127.0.0.1", "[::1]"];

// The members of an answer besides the value, by the kind of the store.
const LISTS = ["sessions", "rows", "values", "entries", "timers"];
const BESIDE = ["expires_at", "expired", "timeout_at", ...LISTS, "next_cursor"];

export const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const versions = (lag) => (lag.offset_lag === null ? "lag unknown" : `${batches(lag.offset_lag)} behind`);

// What a lookup says: the value, and how old it is and who answered.
export function factsOf(answer, tookMs) {
  const by = answer.served_by;
  const absent = answer.expired ? "Left out: it has expired" : "Absent: there is no such key in this version";
  const parts = [element("h3", {}, answer.found ? "Found" : absent)];
  if (answer.found || answer.expired) {
    const columns = Object.entries(answer.result ?? answer.value ?? {});
    const beside = BESIDE.filter((name) => name in answer).map((name) => [name, answer[name]]);
    const facts = pairs([...columns, ...beside].map(([name, value]) => [name, shown(value)]));
    facts.classList.add("value");
    parts.push(facts);
  }
  parts.push(
    element("h3", {}, "How old, and who answered"),
    pairs([
      ["version", `${number(answer.version)} of ${number(answer.lag.end_offset_position)}, ${versions(answer.lag)}`],
      ["age", duration(answer.lag.time_lag_ms)],
      ["committed", answer.committed_at ?? "?"],
      ["watermark", answer.watermark ?? "none"],
      ["answered by", `${nameOf(by)}, ${by.role}, ${by.state}, partition ${answer.partition}`],
      ["took", duration(tookMs)],
      ["position", answer.position],
      ...(answer.marks ? [["marks", answer.marks.join(", ")]] : []),
    ]),
  );
  if (answer.found && answer.result) {
    const stored = pairs(Object.entries(answer.value).map(([name, value]) => [name, shown(value)]));
    parts.push(element("details", {}, element("summary", {}, "What Spark stores"), stored));
  }
  return parts;
}

export function answered(question, answer, tookMs) {
  const parts = factsOf(answer, tookMs);
  // On the reader's own machine a trial hurts no other reader.
  if (HERE.includes(location.hostname) && document.body.dataset.service === "router") {
    const hint = `Try it: kill ${nameOf(answer.served_by)} and ask again. Another replica answers, and says how old it is.`;
    parts.push(element("p", { class: "hint" }, hint));
  }
  parts.push(...lookupCommands(question));
  return parts;
}

const nameOf = (node) => node.node_id ?? `${node.host}:${node.port}`;

const lookupCommands = ({ store, key, bounds }) => [
  commandLine("curl", asCurl(lookupPath(store, key, bounds))),
  commandLine("CLI", lookupCommand(store, key, bounds)),
];

export function explained(question, document) {
  const { store, key, bounds } = question;
  const active = document.active_host === null ? "none" : `${document.active_host.host}:${document.active_host.port}`;
  const order = table(
    ["#", "node", "role", "state", "version", "behind", "in time", "why"],
    document.choice.map((each, index) => [String(index + 1), ...candidate(each), each.why]),
  );
  const left = table(
    ["node", "role", "state", "version", "behind", "in time", "reason"],
    document.exclusions.map((each) => [...candidate(each), each.reason]),
  );
  const facts = pairs([
    ["partition", `${document.partition} of ${document.partitions}`],
    ["active", active],
    ["end", `${number(document.end_offset_position)}, ${document.end_confirmed ? "confirmed" : "not confirmed"}`],
    ["assignment", `${document.epoch} of term ${document.term}`],
  ]);
  return [
    element("h3", {}, "Where this key is, and who would be asked for it"),
    facts,
    document.choice.length ? scrolled("Asked in this order", order) : element("p", {}, "Nobody would be asked."),
    ...(document.exclusions.length ? [element("h3", {}, "Not asked"), scrolled("Not asked", left)] : []),
    commandLine("curl", asCurl(explainPath(store, key, bounds))),
    commandLine("CLI", explainCommand(store, key, bounds)),
  ];
}

const candidate = (each) => [
  each.node_id,
  each.role,
  each.state ?? "?",
  number(each.version),
  number(each.offset_lag),
  duration(each.time_lag_ms),
];

// A head, or a cell of a row, is a text, or a cell already.
export function table(heads, rows) {
  const headOf = (head) => (head instanceof HTMLTableCellElement ? head : element("th", { scope: "col" }, head));
  const head = element("thead", {}, element("tr", {}, ...heads.map(headOf)));
  const body = element("tbody", {});
  for (const row of rows) body.append(element("tr", {}, ...row.map(cell)));
  return element("table", {}, head, body);
}

const cell = (content) => (content instanceof HTMLTableCellElement ? content : element("td", {}, content));

export const scrolled = (label, content) =>
  element("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, content);

export function refused(problem) {
  const candidates = problem.candidates ?? [];
  const parts = [
    element("h3", { class: "problem" }, `${problem.title ?? "It failed"} (${problem.type ?? "problem"})`),
    pairs([["what", problem.detail ?? ""], ["where", problem.where ?? ""], ["do", problem.fix ?? ""]]),
  ];
  if (candidates.length) {
    const rows = candidates.map((each) => [each.node_id ?? "?", each.reason ?? "?", shown(each.offset_lag ?? "?")]);
    parts.push(scrolled("Who was asked", table(["node", "reason", "behind"], rows)));
  }
  return parts;
}
