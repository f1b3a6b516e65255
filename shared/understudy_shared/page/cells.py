"""One replica as the grid and the table of replicas show it: letter, number, kind, and a description in words (pure).

The filter of the page selects by kind; the state of a cell is its colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from understudy_shared.page.words import UNKNOWN, age, batches, percent

LAGGING_FROM = 2
"""Fewest batches behind that count as lagging: one is on its way in every replica after each commit."""

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
    """Return the kind of a replica: the worst that is true of it."""
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
    """Return role and batches behind; a cell that is not well has another letter or a shape, so that colour is not
    needed.
    """
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
