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
  const after = { ...overview, ...delta.sections, tick: delta.tick, generated_at: delta.generated_at };
  return { ...after, grid: mergedGrid(overview.grid, delta, after.stores) };
}

function mergedGrid(grid, delta, stores) {
  const rows = new Map(grid.rows.map((row) => [placeOf(row.store, row.partition), row]));
  for (const [store, partition] of delta.grid_gone ?? []) rows.delete(placeOf(store, partition));
  const before = rows.size;
  for (const row of delta.grid_rows ?? []) rows.set(placeOf(row.store, row.partition), row);
  const after = {
    columns: delta.grid_columns ?? grid.columns,
    rows: [...rows.values()],
    total: delta.grid_total ?? grid.total,
    order: delta.grid_order ?? grid.order,
  };
  if (rows.size > before && after.order === "all") sortRows(after.rows, stores);
  return after;
}

const placeOf = (store, partition) => `${store}/${partition}`;

// In the order of the stores: a partition that is new has its place among the others.
function sortRows(rows, stores) {
  const places = new Map(stores.map((store, index) => [store.store, index]));
  rows.sort((a, b) => places.get(a.store) - places.get(b.store) || a.partition - b.partition);
}
