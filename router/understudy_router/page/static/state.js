// What the router said last: one overview document, kept up to date by deltas. Listeners hear once per change.

export function createState() {
  let overview = null;
  const listeners = [];

  const changed = () => {
    for (const listener of listeners) listener(overview);
  };

  return {
    get overview() {
      return overview;
    },
    listen(listener) {
      listeners.push(listener);
    },
    replace(document) {
      overview = document;
      changed();
    },
    // A delta without a whole to change is of no use: the next whole comes with the next connection.
    merge(delta) {
      if (overview === null) return;
      overview = merged(overview, delta);
      changed();
    },
    tell: () => overview && changed(),
  };
}

export function merged(overview, delta) {
  const grid = delta.sections.grid ?? mergedGrid(overview.grid, delta);
  return { ...overview, ...delta.sections, tick: delta.tick, generated_at: delta.generated_at, grid };
}

function mergedGrid(grid, delta) {
  const rows = new Map(grid.rows.map((row) => [placeOf(row.store, row.partition), row]));
  for (const [store, partition] of delta.grid_gone ?? []) rows.delete(placeOf(store, partition));
  const before = rows.size;
  for (const row of delta.grid_rows ?? []) rows.set(placeOf(row.store, row.partition), row);
  const all = [...rows.values()];
  if (rows.size > before && grid.order === "all") all.sort(byPlace);
  return { ...grid, columns: delta.grid_columns ?? grid.columns, rows: all };
}

const placeOf = (store, partition) => `${store}/${partition}`;

const byPlace = (a, b) => (a.store === b.store ? a.partition - b.partition : a.store < b.store ? -1 : 1);
