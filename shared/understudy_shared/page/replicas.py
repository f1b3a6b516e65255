"""The choices of a viewer, which are in the URL, and the replicas of the page (pure): one page of the chosen ones, as a
grid or as a table; and the open one.

A choice that does not parse is ignored, so a bad link shows the page and not an error. `static/url.js` reads and writes
the same URL.

The grid has a column for each node as long as it is readable; else a column for each replica of a partition, with the
node's name in the cell. Healthy store partitions on the same nodes share a row. An unhealthy one has its own row, to
stand out. The filter selects replicas by kind; the state of a cell is its colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
from urllib.parse import urlencode

from understudy_shared.page.words import UNKNOWN, age, batches, count, number, percent

KINDS = ("unwell", "lagging", "error", "restoring", "opening", "unknown", "dead", "closed")
"""The choices of the filter of the replicas, besides "all"."""

VIEWS = ("grid", "table")

MAX_VALUE_CHARS = 2000
MAX_PAGE = 100_000


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The viewer's choices: the filter, how replicas are shown, which one is open, the key to look up; and for Explore
    the store, a prefix, a filter, an order, and the open key.
    """

    store: str = ""
    state: str = ""
    view: str = "grid"
    page: int = 1
    open: str = ""
    ask: str = ""
    key: str = ""
    explore: str = ""
    prefix: str = ""
    where: str = ""
    order: str = ""
    row: str = ""

    def link(self, **changes: object) -> str:
        """Return the query of a link to the page with some choices changed; defaults are left out."""
        values = {each.name: changes.get(each.name, getattr(self, each.name)) for each in fields(self)}
        given = {each.name: values[each.name] for each in fields(self) if values[each.name] != each.default}
        return f"?{urlencode(given)}" if given else "?"


def read_query(parameters: Mapping[str, str]) -> PageQuery:
    """Read the choices from query parameters."""

    def given(name: str) -> str:
        value = parameters.get(name, "")
        return value if len(value) <= MAX_VALUE_CHARS else ""

    state, view, page = given("state"), given("view"), given("page")
    is_number = page.isascii() and page.isdigit() and len(page) <= 6
    texts = ("store", "open", "ask", "key", "explore", "prefix", "where", "order", "row")
    return PageQuery(
        state=state if state in KINDS else "",
        view=view if view in VIEWS else "grid",
        page=min(max(1, int(page)), MAX_PAGE) if is_number else 1,
        **{name: given(name) for name in texts},
    )


LAGGING_FROM = 2
"""Batches behind from which a replica counts as lagging. After each commit, every replica is one batch behind for a
moment.
"""

ROLES = {"A": "active", "S": "standby", "W": "warm-up"}

STATES = {
    "running": "well",
    "lagging": "attention",
    "error": "attention",
    "opening": "moving",
    "restoring": "moving",
    "unknown": "unknown",
    "closed": "off",
    "dead": "hurt",
}
"""The state, and so the colour, of each kind."""

Cell = Mapping[str, Any]
Row = Mapping[str, Any]


class CellView(NamedTuple):
    """A cell: `text` in the grid, `kind`, `state` (its colour), and `name`, its description in words."""

    text: str
    kind: str
    state: str
    name: str


class ReplicaRow(NamedTuple):
    """A row of the table of replicas."""

    id: str
    store: str
    partition: int
    node_id: str
    cell: Cell


def kind_of(cell: Cell) -> str:
    """Return the kind of a replica: the worst one that applies."""
    state = cell["state"]
    if state in {"DEAD", "CLOSED"}:
        return str(state).lower()
    if state is None:
        return "unknown"
    if state in {"RESTORING", "CREATED"}:
        return "restoring" if state == "RESTORING" else "opening"
    if cell["error"]:
        return "error"
    if cell["lag"] is None:
        return "unknown"
    return "lagging" if cell["lag"] >= LAGGING_FROM else "running"


def cell_text(cell: Cell, kind: str) -> str:
    """Return the role and the batches behind. An unhealthy cell also has a letter or a shape, besides its colour."""
    role, lag = cell["role"], UNKNOWN if cell["lag"] is None else f"{cell['lag']:,}"
    texts = {
        "dead": f"✕ {role}",
        "unknown": f"{role} {UNKNOWN}",
        "closed": f"{role} ∅",
        "opening": f"{role} …",
        "restoring": f"R {percent(None if cell['percent'] is None else int(cell['percent']))}",
        "error": f"{role} {lag} !",
        "lagging": f"{role} {lag} ▲",
    }
    return texts.get(kind, f"{role} {lag}")


def state_words(cell: Cell, kind: str) -> str:
    """Describe a replica's state in words."""
    if kind == "restoring":
        done = cell["percent"]
        return "restoring" if done is None else f"restoring, {int(done)} % done"
    if kind == "unknown":
        return "not heard of" if cell["state"] is None else "running, lag unknown"
    if kind == "error":
        return f"running, with an error: {cell['error']}"
    return {"opening": "opening", "lagging": "running, lagging"}.get(kind, kind)


def cell_name(place: str, cell: Cell, kind: str) -> str:
    """Describe a cell in words. With its text before it, this is the accessible name."""
    words = [f"{place}: {ROLES.get(cell['role'], cell['role'])}", state_words(cell, kind)]
    if kind not in {"dead", "closed", "opening"} and cell["state"] is not None:
        words.append(f"{batches(cell['lag'])} behind, {age(cell['lag_ms'])}")
    if cell["age_ms"] is not None:
        words.append(f"reported {age(cell['age_ms'])} ago")
    return ", ".join(words)


def cell_view(store: str, partition: object, node_id: str, cell: Cell) -> CellView:
    """Return a cell of the grid."""
    kind = kind_of(cell)
    text = cell_text(cell, kind)
    name = f"{text}, {cell_name(f'{store} {partition} on {node_id}', cell, kind)}"
    return CellView(text, kind, STATES[kind], name)


def is_wanted(kind: str, wanted: str) -> bool:
    """Whether the filter shows a replica of that kind. `unwell` selects all kinds but running."""
    return wanted in {"", kind} or (wanted == "unwell" and kind != "running")


def wanted_rows(rows: Sequence[Row], *, store: str, state: str) -> list[Row]:
    """Return the rows of the grid with a replica that the filter selects."""
    return [
        row
        for row in rows
        if store in {"", row["store"]}
        and (not state or any(is_wanted(kind_of(cell), state) for cell in row["cells"].values()))
    ]


def wanted_replicas(rows: Sequence[Row], *, store: str, state: str) -> Iterator[ReplicaRow]:
    """Yield the replicas that the filter selects, in the order of the grid."""
    for row in rows:
        if store not in {"", row["store"]}:
            continue
        for node_id, cell in sorted(row["cells"].items()):
            if not state or is_wanted(kind_of(cell), state):
                place = f"{row['store']}/{row['partition']}/{node_id}"
                yield ReplicaRow(place, row["store"], row["partition"], node_id, cell)


Grid = Mapping[str, Any]

MAX_COLUMNS = 24
"""Limit on nodes with a column each: a wider grid is not readable."""

GRID_ROWS = 500
TABLE_ROWS = 200
"""Rows of one page. There are pages, and not rows that appear on scrolling, so that a browser can search, link and read
out a whole page."""

PAGER_REACH = 5
"""Number of pages before and after the current one with a link, in addition to the first and the last."""


FOLDS_ABOVE = 50
"""Number of rows above which rows are folded. Fewer rows can be read one by one."""

NAMED = 3
"""Limit on the partitions that a row names."""

_WORST = ("lag", "lag_ms", "age_ms")


def folded(rows: Sequence[Row]) -> list[Row]:
    """Fold the rows. Each result has a `label`, and the worst values of the rows that it replaces."""
    if len(rows) <= FOLDS_ABOVE:
        return [{**row, "label": str(row["partition"])} for row in rows]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_likeness(row), []).append(row)
    return [_as_one(group) for group in groups.values()]


def _likeness(row: Row) -> tuple[Any, ...]:
    """Return the values that must be equal for rows to fold into one."""
    cells: Mapping[str, Any] = row["cells"]
    is_well = bool(cells) and all(kind_of(cell) == "running" for cell in cells.values())
    if not is_well:
        return (row["store"], row["partition"])
    return (row["store"], *sorted((node_id, cell["role"]) for node_id, cell in cells.items()))


def _as_one(group: Sequence[Row]) -> Row:
    first = group[0]
    cells = {}
    for node_id, cell in first["cells"].items():
        values = {name: [row["cells"][node_id][name] for row in group] for name in _WORST}
        cells[node_id] = {**cell, **{name: None if None in few else max(few) for name, few in values.items()}}
    return {**first, "cells": cells, "label": _label([row["partition"] for row in group])}


def _label(partitions: Sequence[int]) -> str:
    """Return the first partitions, and how many more there are."""
    more = len(partitions) - NAMED
    return ", ".join(map(str, partitions[:NAMED])) + (f" and {number(more)} more" if more > 0 else "")


class ShownCell(NamedTuple):
    """A cell of the grid, its link, and whether it is open."""

    place: str
    view: CellView
    link: str
    is_open: bool


def grid_view(grid: Grid, query: PageQuery) -> dict[str, Any]:
    """Return the values for the templates. Rows are made lazily, so that other requests are answered in between."""
    rows: Sequence[Row] = grid["rows"]
    if query.view == "table":
        replicas = list(wanted_replicas(rows, store=query.store, state=query.state))
        first, last, pages = page_bounds(len(replicas), TABLE_ROWS, query.page)
        return {
            "columns": [],
            "rows": [],
            "replicas": (replica_row(each, query) for each in replicas[first:last]),
            "total": len(replicas),
            "shown": shown_words(grid, first, last, len(replicas), "replica"),
            "pager": pager(query, pages),
        }
    found = wanted_rows(rows, store=query.store, state=query.state)
    wanted = folded(found)
    folds = ""
    if len(wanted) < len(found):
        folds = f"{count(len(found), 'partition')}, those that are well and lie alike in one row: "
    first, last, pages = page_bounds(len(wanted), GRID_ROWS, query.page)
    columns = columns_of(grid, wanted)
    return {
        "columns": columns,
        "rows": (_grid_row(row, columns, query, is_packed=is_packed(grid)) for row in wanted[first:last]),
        "replicas": [],
        "total": len(wanted),
        "shown": folds + shown_words(grid, first, last, len(wanted), "row" if folds else "partition"),
        "pager": pager(query, pages),
    }


def is_packed(grid: Grid) -> bool:
    """Whether there are too many nodes for a column each."""
    return len(grid["columns"]) > MAX_COLUMNS


def columns_of(grid: Grid, rows: Sequence[Row]) -> list[str]:
    """Return the headings of the grid: nodes, or if there are too many, `replica 1`, `replica 2` and so on."""
    if not is_packed(grid):
        return list(grid["columns"])
    return [f"replica {n + 1}" for n in range(max((len(row["cells"]) for row in rows), default=1))]


def page_bounds(total: int, size: int, page: int) -> tuple[int, int, int]:
    """Return the index of the first row, the index after the last row, and the number of pages. A page beyond the end
    is the last one.
    """
    pages = max(1, -(-total // size))
    first = (min(page, pages) - 1) * size
    return first, min(total, first + size), pages


def shown_words(grid: Grid, first: int, last: int, total: int, noun: str) -> str:
    """Say which rows are shown, and of how many; also if the router sent only the worst ones."""
    words = count(total, noun)
    if last - first < total:
        words = f"{number(first + 1)} to {number(last)} of {words}"
    if grid["order"] == "worst":
        words += f"; these are the worst of {count(grid['total'], 'partition')}, the CSV below has all"
    return words


def find_replica(rows: Sequence[Row], place: str) -> ReplicaRow | None:
    """Return the replica at `store/partition/node`."""
    for row in rows:
        before = f"{row['store']}/{row['partition']}/"
        node_id = place.removeprefix(before)
        if place.startswith(before) and node_id in row["cells"]:
            return ReplicaRow(place, row["store"], row["partition"], node_id, row["cells"][node_id])
    return None


def facts_of(replica: ReplicaRow, end: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the known facts of one replica."""
    cell, kind = replica.cell, kind_of(replica.cell)
    is_known = cell["lag"] is not None and end["version"] is not None
    facts: list[tuple[str, str]] = [
        ("role", ROLES.get(cell["role"], str(cell["role"]))),
        ("state", state_words(cell, kind)),
        ("version", f"{number(end['version'] - cell['lag'])} of {number(end['version'])}" if is_known else UNKNOWN),
        ("behind", f"{batches(cell['lag'])}, {age(cell['lag_ms'])}"),
        ("reported", UNKNOWN if cell["age_ms"] is None else f"{age(cell['age_ms'])} ago"),
    ]
    return [*facts, ("error", str(cell["error"]))] if cell["error"] else facts


def replica_row(replica: ReplicaRow, query: PageQuery) -> dict[str, Any]:
    """Return a row of the table of replicas."""
    cell, kind = replica.cell, kind_of(replica.cell)
    view = cell_view(replica.store, replica.partition, replica.node_id, cell)
    return {
        "key": replica.id,
        "store": replica.store,
        "partition": replica.partition,
        "node_id": replica.node_id,
        "role": ROLES.get(cell["role"], cell["role"]),
        "state": view.state,
        "words": state_words(cell, kind),
        "lag": number(cell["lag"]),
        "lag_ms": age(cell["lag_ms"]),
        "age": age(cell["age_ms"]),
        "link": query.link(open=replica.id),
        "is_open": replica.id == query.open,
    }


def pager(query: PageQuery, pages: int) -> list[dict[str, Any]]:
    """Return links to pages: the first, the last, and the ones around the current one."""
    if pages == 1:
        return []
    here = min(query.page, pages)
    near = range(max(1, here - PAGER_REACH), min(pages, here + PAGER_REACH) + 1)
    numbers = sorted({1, pages, *near})
    return [{"page": n, "href": query.link(page=n), "is_here": n == here} for n in numbers]


def _grid_row(row: Row, columns: Sequence[str], query: PageQuery, *, is_packed: bool) -> dict[str, Any]:
    held = row["cells"]
    nodes: list[str | None] = [*sorted(held)] if is_packed else [each if each in held else None for each in columns]
    nodes += [None] * (len(columns) - len(nodes))
    cells = [None if node_id is None else _shown(row, node_id, query, is_packed=is_packed) for node_id in nodes]
    key = f"{row['store']}/{row['partition']}"
    return {"key": key, "store": row["store"], "label": row["label"], "cells": cells}


def _shown(row: Row, node_id: str, query: PageQuery, *, is_packed: bool) -> ShownCell:
    cell: Cell = row["cells"][node_id]
    view = cell_view(row["store"], row["label"], node_id, cell)
    if is_packed:
        view = view._replace(text=f"{node_id} {view.text}", name=f"{node_id} {view.name}")
    place = f"{row['store']}/{row['partition']}/{node_id}"
    return ShownCell(place, view, query.link(open=place), place == query.open)
