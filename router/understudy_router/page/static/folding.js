// Rows of the grid that say the same, as one row; folding.py does the same.

import { kindOf } from "./cells.js";
import { number } from "./words.js";

const FOLDS_ABOVE = 50;
const NAMED = 3;
const WORST = ["lag", "lag_ms", "age_ms"];

export function folded(rows) {
  if (rows.length <= FOLDS_ABOVE) return rows.map((row) => ({ ...row, label: String(row.partition) }));
  const groups = new Map();
  for (const row of rows) {
    const likeness = likenessOf(row);
    if (!groups.has(likeness)) groups.set(likeness, []);
    groups.get(likeness).push(row);
  }
  return [...groups.values()].map(asOne);
}

function likenessOf({ store, partition, cells }) {
  const entries = Object.entries(cells);
  const isWell = entries.length > 0 && entries.every(([, cell]) => kindOf(cell) === "running");
  return JSON.stringify(isWell ? [store, ...entries.map(([node, { role }]) => [node, role]).sort()] : [store, partition]);
}

function asOne(group) {
  const [first] = group;
  const cells = {};
  for (const [nodeId, cell] of Object.entries(first.cells)) {
    cells[nodeId] = { ...cell };
    for (const name of WORST) cells[nodeId][name] = most(group.map((row) => row.cells[nodeId][name]));
  }
  return { ...first, cells, label: labelOf(group.map((row) => row.partition)) };
}

const most = (values) => values.reduce((worst, value) => (worst === null || value === null ? null : Math.max(worst, value)));

function labelOf(partitions) {
  const more = partitions.length - NAMED;
  return partitions.slice(0, NAMED).join(", ") + (more > 0 ? ` and ${number(more)} more` : "");
}
