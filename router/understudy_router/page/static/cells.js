// One replica as the grid and the table show it, as cells.py does.

import { UNKNOWN, age, batches, number } from "./words.js";

export const LAGGING_FROM = 2;

export const ROLES = { A: "active", S: "standby", W: "warm-up" };

export const STATES = {
  running: "well",
  lagging: "attention",
  error: "attention",
  opening: "moving",
  restoring: "moving",
  unknown: "unknown",
  closed: "off",
  dead: "hurt",
};

export function kindOf(cell) {
  if (cell.state === "DEAD" || cell.state === "CLOSED") return cell.state.toLowerCase();
  if (cell.state === null) return "unknown";
  if (cell.state === "RESTORING") return "restoring";
  if (cell.state === "CREATED") return "opening";
  if (cell.error) return "error";
  if (cell.lag === null) return "unknown";
  return cell.lag >= LAGGING_FROM ? "lagging" : "running";
}

export function cellText(cell, kind) {
  const { role } = cell;
  const lag = number(cell.lag);
  switch (kind) {
    case "dead":
      return `✕ ${role}`;
    case "unknown":
      return `${role} ${UNKNOWN}`;
    case "closed":
      return `${role} ∅`;
    case "opening":
      return `${role} …`;
    case "restoring":
      return cell.percent === null ? `R ${UNKNOWN}` : `R ${Math.trunc(cell.percent)} %`;
    case "error":
      return `${role} ${lag} !`;
    case "lagging":
      return `${role} ${lag} ▲`;
    default:
      return `${role} ${lag}`;
  }
}

export function stateWords(cell, kind) {
  switch (kind) {
    case "restoring":
      return cell.percent === null ? "restoring" : `restoring, ${Math.trunc(cell.percent)} % done`;
    case "unknown":
      return cell.state === null ? "not heard of" : "running, lag unknown";
    case "error":
      return `running, with an error: ${cell.error}`;
    case "lagging":
      return "running, lagging";
    default:
      return kind;
  }
}

export function cellName(place, cell, kind) {
  const words = [`${place}: ${ROLES[cell.role] ?? cell.role}`, stateWords(cell, kind)];
  if (!["dead", "closed", "opening"].includes(kind) && cell.state !== null) {
    words.push(`${batches(cell.lag)} behind, ${age(cell.lag_ms)}`);
  }
  if (cell.age_ms !== null) words.push(`reported ${age(cell.age_ms)} ago`);
  return words.join(", ");
}

export function cellView(store, partition, nodeId, cell) {
  const kind = kindOf(cell);
  const text = cellText(cell, kind);
  const name = `${text}, ${cellName(`${store} ${partition} on ${nodeId}`, cell, kind)}`;
  return { text, kind, state: STATES[kind], name };
}

export const isWanted = (kind, wanted) =>
  wanted === "" || wanted === kind || (wanted === "unwell" && kind !== "running");

export function wantedRows(rows, { store, state }) {
  return rows.filter(
    (row) =>
      (store === "" || store === row.store) &&
      (state === "" || Object.values(row.cells).some((cell) => isWanted(kindOf(cell), state))),
  );
}

export function wantedReplicas(rows, { store, state }) {
  const replicas = [];
  for (const row of rows) {
    if (store !== "" && store !== row.store) continue;
    for (const nodeId of Object.keys(row.cells).sort()) {
      const cell = row.cells[nodeId];
      if (!isWanted(kindOf(cell), state)) continue;
      const id = `${row.store}/${row.partition}/${nodeId}`;
      replicas.push({ id, store: row.store, partition: row.partition, nodeId, cell });
    }
  }
  return replicas;
}
