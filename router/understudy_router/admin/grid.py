"""The grid of the overview: a row per store partition, a cell per replica (pure, in slices).

Above MAX_REPLICAS only the partitions of the worst replicas have a row. A row that only got older is kept as it was,
and so is the whole grid while each node reports the same of all its replicas, and the same as before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from understudy_router.admin.facts import Facts
from understudy_router.admin.lag_page import Query, first_of
from understudy_router.admin.restoring import percent_of
from understudy_router.admin.settling import Kept, settled_ms
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.catalogue import StoreRoute

MAX_REPLICAS = 10_000
WORST_ROWS = 200
SLICE_ROWS = 150
"""Number of rows that are made in one slice: one or two milliseconds."""

_LETTERS = "ASW"

RowKey = tuple[str, int]
"""The store and the partition of a row."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of the grid. `columns` are node ids; `total` counts the rows without the limit."""

    columns: tuple[str, ...]
    rows: Mapping[RowKey, Kept]
    total: int
    order: str
    basis: object = None
    """The input of the rows: equal bases mean equal rows; `None` when the rows have to be compared."""

    def whole(self) -> bytes:
        """Return the section of the document."""
        return b'%b,"rows":[%b]}' % (self.head()[:-1], b",".join(row.text for row in self.rows.values()))

    def head(self) -> bytes:
        """Return the section without rows."""
        return orjson.dumps({"columns": self.columns, "total": self.total, "order": self.order})


def grid_of(snapshot: Snapshot, before: Grid | None) -> Generator[None, None, Grid]:
    """Make the grid of now."""
    layout = snapshot.layout
    rows: dict[RowKey, Kept] = {}
    replicas = sum(len(layout.of_store(route)) for route in layout.routes)
    is_whole = replicas <= MAX_REPLICAS
    basis = _basis(snapshot) if is_whole else None
    if before is not None and basis is not None and basis == before.basis:
        return before
    shown: Iterable[tuple[StoreRoute, int]]
    shown = _every_row(snapshot) if is_whole else (yield from _worst_rows(snapshot))
    used: set[int] = set()
    for place, (route, task) in enumerate(shown, 1):
        key = (route.name, layout.partition(task))
        rows[key] = _row(snapshot, key, task, None if before is None else before.rows.get(key))
        used.update(layout.node[replica] for replica in layout.holders(task))
        if place % SLICE_ROWS == 0:
            yield
    columns = layout.node_ids if is_whole else tuple(layout.node_ids[number] for number in sorted(used))
    return Grid(columns, rows, sum(route.partitions for route in layout.routes), "all" if is_whole else "worst", basis)


def _basis(snapshot: Snapshot) -> object:
    """Return the input of all rows, while no replica differs from the others of its node; else `None`."""
    if any(view.own for view in snapshot.holders):
        return None
    return snapshot.layout, tuple(_shape(view.facts) for view in snapshot.holders)


def _every_row(snapshot: Snapshot) -> Iterator[tuple[StoreRoute, int]]:
    for route in snapshot.layout.routes:
        first = snapshot.layout.operators[route.operator_id].first
        for task in range(first, first + route.partitions):
            yield route, task


def _worst_rows(snapshot: Snapshot) -> Generator[None, None, Sequence[tuple[StoreRoute, int]]]:
    """Return the partitions of the worst replicas, the worst first; those without an open replica come before all
    others.
    """
    layout = snapshot.layout
    found: dict[RowKey, tuple[StoreRoute, int]] = {}
    for task in snapshot.totals.unserved[:WORST_ROWS]:
        operator = layout.operator_of(task)
        for route in layout.routes:
            if route.operator_id == operator.operator_id and task - operator.first < route.partitions:
                found[route.name, task] = (route, task)
    worst, _ = yield from first_of(snapshot, Query(sort="-lag", limit=3 * WORST_ROWS))
    for _, _, which, replica in worst:
        route, task = layout.routes[which], layout.task[replica]
        found.setdefault((route.name, task), (route, task))
    return list(found.values())[:WORST_ROWS]


def _row(snapshot: Snapshot, key: RowKey, task: int, before: Kept | None) -> Kept:
    layout = snapshot.layout
    replicas = [
        (layout.node_ids[layout.node[replica]], _LETTERS[layout.role[replica]], snapshot.facts(replica))
        for replica in layout.holders(task)
    ]
    shape = tuple((node_id, role, _shape(facts)) for node_id, role, facts in replicas)
    if before is not None and before.shape == shape:
        return before
    store, partition = key
    cells = {
        node_id: {
            "role": role,
            "state": facts.state,
            "lag": facts.offset_lag,
            "lag_ms": facts.time_lag_ms,
            "age_ms": facts.report_age_ms,
            "percent": percent_of(facts),
            "error": facts.error,
        }
        for node_id, role, facts in replicas
    }
    return Kept(shape, orjson.dumps({"store": store, "partition": partition, "cells": cells}))


def _shape(facts: Facts) -> tuple[object, ...]:
    """Return the facts whose change makes a cell a new one: ages count by their steps."""
    lag_ms, age_ms = settled_ms(facts.time_lag_ms), settled_ms(facts.report_age_ms)
    return facts.state, facts.offset_lag, lag_ms, age_ms, percent_of(facts), facts.error
