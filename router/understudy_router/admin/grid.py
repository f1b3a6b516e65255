"""The parts of the overview, each of which knows when it last changed; and those of its grid: a row per store
partition, a cell per replica (pure, in slices).

A part is kept while only noise changes in it. Above MAX_REPLICAS only the partitions of the worst replicas have a row.
A row that only got older is kept as it was, and so is the whole grid while each node reports the same of all its
replicas, and the same as before.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

import orjson

from understudy_router.admin.facts import Facts
from understudy_router.admin.lag_page import Query, first_of
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.catalogue import StoreRoute

FRESH_MS = 2_000
"""Milliseconds below which ages and lags count as equal: a heartbeat is up to a second old when all is well."""

MINUTE_MS = 60_000

KEPT_MS = 5_000
"""Most milliseconds for which a small section may show an age that was true when it was made."""

K = TypeVar("K")


class DocumentPart(NamedTuple):
    """A part as JSON, the input of which it was made, without noise, and the tick at which its text last changed."""

    shape: object
    text: bytes
    tick: int
    made_ms: float = 0.0


class Now(NamedTuple):
    """The tick and the time at which parts are made, and the oldest tick since which a viewer may ask for changes."""

    tick: int
    ms: float
    oldest: int = 0

    def part(
        self, before: DocumentPart | None, shape: object, document: object, *, keep_ms: float = math.inf
    ) -> DocumentPart:
        """Return the present part: the one before while its shape is the same, for `keep_ms` at most. One that is made
        anew has the tick of the one before if the text is the same.
        """
        if before is not None and before.shape == shape and self.ms - before.made_ms < keep_ms:
            return before
        text = orjson.dumps(document)
        is_same = before is not None and before.text == text
        return DocumentPart(shape, text, before.tick if before is not None and is_same else self.tick, self.ms)


def changed(parts: Mapping[K, DocumentPart], tick: int) -> dict[K, bytes]:
    """Return the texts that changed after a tick."""
    return {key: part.text for key, part in parts.items() if part.tick > tick}


def members(texts: Mapping[str, bytes]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return b",".join(b'"%b":%b' % (name.encode(), text) for name, text in texts.items())


def settled_ms(ms: int | None) -> int | None:
    """Return the step of an age: one step for all fresh ages, then steps of a second, after a minute ever longer
    ones.
    """
    if ms is None:
        return None
    if ms < FRESH_MS:
        return 0
    return ms // 1000 if ms < MINUTE_MS else 60 + (ms // MINUTE_MS).bit_length()


MAX_REPLICAS = 10_000
WORST_ROWS = 200

_LETTERS = "ASW"

RowKey = tuple[str, int]
"""The store and the partition of a row."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of the grid. `total` counts the rows without the limit."""

    members: Mapping[str, DocumentPart]
    """All but the rows: `columns` (node ids), `total` and `order`."""
    rows: Mapping[RowKey, DocumentPart]
    gone: Mapping[RowKey, int]
    """The rows that no longer exist, and the tick at which each went."""
    tick: int
    """The tick at which any of these last changed."""
    basis: object = None
    """The input of the rows: equal bases mean equal rows; `None` when the rows have to be compared."""

    def head(self) -> bytes:
        """Return the section without rows."""
        return b"{%b}" % members({name: part.text for name, part in self.members.items()})

    def whole(self) -> bytes:
        """Return the section of the document."""
        return b'%b,"rows":[%b]}' % (self.head()[:-1], b",".join(row.text for row in self.rows.values()))

    def since(self, tick: int) -> bytes:
        """Return the members of a delta: the rows that changed or went after a tick, and the other members that did."""
        rows = changed(self.rows, tick) if self.tick > tick else {}
        gone = sorted(key for key, went in self.gone.items() if went > tick)
        texts = {"rows": b"[%b]" % b",".join(rows.values()), "gone": orjson.dumps(gone), **changed(self.members, tick)}
        return members({f"grid_{name}": text for name, text in texts.items()})


NO_GRID = Grid({}, {}, {}, 0)


def grid_of(snapshot: Snapshot, before: Grid, now: Now) -> Generator[None, None, Grid]:
    """Make the grid of now."""
    # Many branches, because a grid is whole or cut, and each case is spared the work that only the other one needs.
    index = snapshot.index
    replicas = sum(len(index.of_store(route)) for route in index.routes)
    is_whole = replicas <= MAX_REPLICAS
    basis = _basis(snapshot) if is_whole else None
    if basis is not None and basis == before.basis:
        return before
    shown: Iterable[tuple[StoreRoute, int]]
    shown = _every_row(snapshot) if is_whole else (yield from _worst_rows(snapshot))
    rows: dict[RowKey, DocumentPart] = {}
    used: set[int] = set()
    for route, task in shown:
        key = (route.name, index.partition[task])
        rows[key] = _row(snapshot, key, task, before.rows.get(key), now)
        used.update(index.node[replica] for replica in index.holders(task))
        yield
    values = {
        "columns": index.node_ids if is_whole else tuple(index.node_ids[number] for number in sorted(used)),
        "total": sum(route.partitions for route in index.routes),
        "order": "all" if is_whole else "worst",
    }
    members = {name: now.part(before.members.get(name), value, value) for name, value in values.items()}
    went = {**before.gone, **dict.fromkeys(before.rows, now.tick)}
    gone = {key: tick for key, tick in went.items() if key not in rows and tick > now.oldest}
    ticks = chain(gone.values(), (part.tick for part in chain(members.values(), rows.values())))
    return Grid(members, rows, gone, max(ticks), basis)


def _basis(snapshot: Snapshot) -> object:
    """Return the input of all rows, while no replica differs from the others of its node; else `None`."""
    if any(view.own for view in snapshot.holders):
        return None
    return snapshot.index, tuple(_shape(view.facts) for view in snapshot.holders)


def _every_row(snapshot: Snapshot) -> Iterator[tuple[StoreRoute, int]]:
    for route in snapshot.index.routes:
        for task in snapshot.index.tasks_of_store(route):
            yield route, task


def _worst_rows(snapshot: Snapshot) -> Generator[None, None, Sequence[tuple[StoreRoute, int]]]:
    """Return the partitions of the worst replicas, the worst first; those without an open replica come before all
    others.
    """
    index = snapshot.index
    found: dict[RowKey, tuple[StoreRoute, int]] = {}
    for task in snapshot.totals.unserved[:WORST_ROWS]:
        for route in index.routes:
            if task in index.tasks_of_store(route):
                found[route.name, task] = (route, task)
    worst, _ = yield from first_of(snapshot, Query(sort="-lag", limit=3 * WORST_ROWS))
    for _, _, which, replica in worst:
        route, task = index.routes[which], index.task[replica]
        found.setdefault((route.name, task), (route, task))
    return list(found.values())[:WORST_ROWS]


def _row(snapshot: Snapshot, key: RowKey, task: int, before: DocumentPart | None, now: Now) -> DocumentPart:
    index = snapshot.index
    replicas = [
        (index.node_ids[index.node[replica]], _LETTERS[index.role[replica]], snapshot.facts(replica))
        for replica in index.holders(task)
    ]
    shape = tuple((node_id, role, _shape(facts)) for node_id, role, facts in replicas)
    if before is not None and before.shape == shape:
        return before  # before the document is made: most rows stay as they were
    store, partition = key
    cells = {
        node_id: {
            "role": role,
            "state": facts.state,
            "lag": facts.offset_lag,
            "lag_ms": facts.time_lag_ms,
            "age_ms": facts.report_age_ms,
            "percent": facts.restored_percent,
            "error": facts.error,
        }
        for node_id, role, facts in replicas
    }
    return now.part(before, shape, {"store": store, "partition": partition, "cells": cells})


def _shape(facts: Facts) -> tuple[object, ...]:
    """Return the facts whose change makes a cell a new one: ages count by their steps."""
    lag_ms, age_ms = settled_ms(facts.time_lag_ms), settled_ms(facts.report_age_ms)
    return facts.state, facts.offset_lag, lag_ms, age_ms, facts.restored_percent, facts.error
