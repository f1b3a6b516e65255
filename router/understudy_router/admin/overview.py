"""The page's data as one document in parts that each know when they last changed: sections, and a grid with a row per
store partition and a cell per replica (pure, in slices).

Each part is JSON bytes, so that parts can be compared and sent as they are. Ages change all the time; all ages below
two seconds count as equal, and a part is kept if only they changed. So is the whole grid while each node reports the
same for all its replicas, and the same as before. Above MAX_REPLICAS only the partitions of the worst replicas have a
row.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from understudy_router.admin.facts import ROLES, Facts
from understudy_router.admin.lag_report import LagQuery, first_of
from understudy_router.admin.node_reports import node_document
from understudy_router.admin.rates import NO_TREND, NOTHING_SERVED
from understudy_router.admin.safe_to_stop import Losses
from understudy_router.admin.snapshot import ClusterSnapshot, Document, Observed
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.readiness import bus_document
from understudy_router.questions.moments import SnapshotLeases, listing_document
from understudy_shared.base.clock import Clock
from understudy_shared.base.extras import PACKAGE
from understudy_shared.page.series import Number
from understudy_shared.spark.temporal import utc_text

MAX_SHOWN: Final = 50
"""Limit on the leases of the overview. The call that lists them has all."""

LOOK_AGAIN_MS: Final = 2_000
"""Age at which the nodes are asked again while there are viewers."""

FIRST_LOOK_S: Final = 1.0
"""Longest wait for the first list of a router."""


def overview_part(snapshots: Sequence[Document]) -> Document:
    """Return the leases as the overview has them: how many, and those that end first."""
    return {"held": len(snapshots), "leases": list(snapshots[:MAX_SHOWN])}


class RecentSnapshots:
    """The leases as the nodes last reported them. At most one background query of the nodes runs at a time."""

    def __init__(self, leases: SnapshotLeases, clock: Clock) -> None:
        self._leases = leases
        self._clock = clock
        self._last: Sequence[Document] = ()
        self._looked_ms = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def recent(self) -> Sequence[Document]:
        """Return the cached leases; only the first list is waited for. Start a new query when it is due."""
        before, now_ms = self._looking, self._clock.monotonic_ms()
        if before is None or (before.done() and now_ms - self._looked_ms >= LOOK_AGAIN_MS):
            self._looked_ms = now_ms
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="list snapshot leases")
            if before is None:
                await asyncio.wait([self._looking], timeout=FIRST_LOOK_S)
        return self._last

    def end(self) -> None:
        """Cancel the background query: the router stops."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        self._last = listing_document(await self._leases.listed())["snapshots"]


FRESH_MS = 2_000
"""Milliseconds below which ages and lags count as equal: a heartbeat is up to a second old when all is well."""

MINUTE_MS = 60_000

KEPT_MS = 5_000
"""Most milliseconds that a small section may show a stale age."""

K = TypeVar("K")


class DocumentPart(NamedTuple):
    """A part as JSON, its input without noise, and the tick when its text last changed."""

    shape: object
    text: bytes
    tick: int
    made_ms: float = 0.0


class Now(NamedTuple):
    """The tick and the time of making parts, and the oldest tick since which a viewer may ask for changes."""

    tick: int
    ms: float
    oldest: int = 0

    def part(
        self, before: DocumentPart | None, shape: object, document: object, *, keep_ms: float = math.inf
    ) -> DocumentPart:
        """Return the present part: the previous one while its shape is the same, for `keep_ms` at most. A new one keeps
        the previous tick if the text is the same.
        """
        if before is not None and before.shape == shape and self.ms - before.made_ms < keep_ms:
            return before
        text = orjson.dumps(document)
        is_same = before is not None and before.text == text
        return DocumentPart(shape, text, before.tick if before is not None and is_same else self.tick, self.ms)


def changed(parts: Mapping[K, DocumentPart], tick: int) -> dict[K, bytes]:
    return {key: part.text for key, part in parts.items() if part.tick > tick}


def members(texts: Mapping[str, bytes]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return b",".join(b'"%b":%b' % (name.encode(), text) for name, text in texts.items())


def settled_ms(ms: int | None) -> int | None:
    """Return the step of an age: one for all fresh ages, then one a second, after a minute ever longer ones."""
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
    """The rows that no longer exist, each with the tick when it went."""
    tick: int
    """The tick when any of these last changed."""
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


def grid_of(snapshot: ClusterSnapshot, before: Grid, now: Now) -> Generator[None, None, Grid]:
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


def _basis(snapshot: ClusterSnapshot) -> object:
    """Return the input of all rows, while no replica differs from the others of its node; else `None`."""
    if any(view.own for view in snapshot.holders):
        return None
    return snapshot.index, tuple(_cell_shape(view.facts) for view in snapshot.holders)


def _every_row(snapshot: ClusterSnapshot) -> Iterator[tuple[StoreRoute, int]]:
    for route in snapshot.index.routes:
        for task in snapshot.index.tasks_of_store(route):
            yield route, task


def _worst_rows(snapshot: ClusterSnapshot) -> Generator[None, None, Sequence[tuple[StoreRoute, int]]]:
    """Return the partitions of the worst replicas, the worst first: those without an open replica."""
    index = snapshot.index
    found: dict[RowKey, tuple[StoreRoute, int]] = {}
    for task in snapshot.totals.unserved[:WORST_ROWS]:
        for route in index.routes:
            if task in index.tasks_of_store(route):
                found[route.name, task] = (route, task)
    worst, _ = yield from first_of(snapshot, LagQuery(sort="-lag", limit=3 * WORST_ROWS))
    for _, _, which, replica in worst:
        route, task = index.routes[which], index.task[replica]
        found.setdefault((route.name, task), (route, task))
    return list(found.values())[:WORST_ROWS]


def _row(snapshot: ClusterSnapshot, key: RowKey, task: int, before: DocumentPart | None, now: Now) -> DocumentPart:
    index = snapshot.index
    replicas = [
        (index.node_ids[index.node[replica]], _LETTERS[index.role[replica]], snapshot.facts(replica))
        for replica in index.holders(task)
    ]
    shape = tuple((node_id, role, _cell_shape(facts)) for node_id, role, facts in replicas)
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


def _cell_shape(facts: Facts) -> tuple[object, ...]:
    """Return the facts that make a cell a new one when they change: ages count by their steps."""
    lag_ms, age_ms = settled_ms(facts.time_lag_ms), settled_ms(facts.report_age_ms)
    return facts.state, facts.offset_lag, lag_ms, age_ms, facts.restored_percent, facts.error


SCHEMA = 1

COUNTED = ("running", "restoring", "dead", "unknown")
"""The members of a summary that are summed up over all operators."""

MAX_KEPT = 60
"""Number of earlier ticks since which a returning or slow viewer gets only the changes."""


Histories = Mapping[str, Sequence[Number]]
"""The worst lags of the last hour, oldest first, by store."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The parts of the document. `sections` are all members but the tick, the time and the grid. `tick` is when any
    part last changed.

    Changes are known since the ticks in `known`. A viewer who applies them to that overview has exactly this one,
    except for the order of the rows.
    """

    tick: int
    generated_at: str | None
    sections: Mapping[str, DocumentPart]
    grid: Grid
    known: tuple[int, ...] = ()
    """The last MAX_KEPT ticks before this one."""

    def whole(self) -> bytes:
        """Return the document."""
        head = {"schema": SCHEMA, "tick": self.tick, "generated_at": self.generated_at}
        sections = members({name: part.text for name, part in self.sections.items()})
        return b'%b,%b,"grid":%b}' % (orjson.dumps(head)[:-1], sections, self.grid.whole())

    def since(self, tick: int) -> bytes:
        """Return the changes since the overview of a tick, in the form that a viewer gets."""
        head = orjson.dumps({"tick": self.tick, "generated_at": self.generated_at})[:-1]
        return b'%b,"sections":{%b},%b}' % (head, members(changed(self.sections, tick)), self.grid.since(tick))

    def documents(self) -> Generator[None, None, dict[str, Any]]:
        """Return the document as Python objects, in slices."""
        found: dict[str, Any] = {"schema": SCHEMA, "tick": self.tick, "generated_at": self.generated_at}
        for name, part in self.sections.items():
            found[name] = orjson.loads(part.text)
            yield
        found["grid"] = orjson.loads(self.grid.head())
        rows = found["grid"]["rows"] = []
        for row in self.grid.rows.values():
            rows.append(orjson.loads(row.text))
            yield
        return found


def overview_of(
    seen: Observed, losses: Mapping[str, Losses], histories: Histories, before: Overview | None
) -> Generator[None, None, Overview]:
    """Return the overview of now. A part that differs from the one before only by noise is kept as it was. `losses` has
    the cost of a stop of each node.
    """
    snapshot = seen.snapshot
    known = before or Overview(0, None, {}, NO_GRID)
    now = Now(max(snapshot.tick, known.tick + 1), snapshot.about.now_ms, next(iter(known.known), 0))
    nodes: list[Document] = []
    for node_id, view in snapshot.nodes.items():
        nodes.append(node_document(snapshot, view, losses[node_id]))
        yield
    grid = yield from grid_of(snapshot, known.grid, now)
    sections = {
        name: now.part(known.sections.get(name), _section_shape(name, value), value, keep_ms=KEPT_MS)
        for name, value in _sections(seen, histories).items()
    }
    shape = [{**each, "heartbeat_age_ms": settled_ms(each["heartbeat_age_ms"])} for each in nodes]
    sections["nodes"] = now.part(known.sections.get("nodes"), shape, nodes)
    tick = max(grid.tick, *(part.tick for part in sections.values()))
    ticks = known.known if before is None or tick == before.tick else (*before.known, before.tick)[-MAX_KEPT:]
    return Overview(tick, utc_text(snapshot.about.now_us), sections, grid, ticks)


@cache
def _release() -> str:
    return version(PACKAGE)


def _sections(seen: Observed, histories: Histories) -> Document:
    """Return the small sections, in the order of the document."""
    snapshot, about = seen.snapshot, seen.snapshot.about
    return {
        "application_id": about.application_id,
        "lineage": snapshot.lineage,
        "release": _release(),
        **about.view_of,
        **figures_of(seen),
        "stores": [_store(seen, histories, route) for route in snapshot.index.routes],
        "restores": seen.restores,
        "disagreement": seen.disagreements,
        "snapshots": overview_part(seen.snapshots),
        "events": seen.events,
    }


def figures_of(seen: Observed) -> Document:
    """Return the figures of a whole application, without its stores, nodes and replicas."""
    snapshot, about, rates = seen.snapshot, seen.snapshot.about, seen.rates
    return {
        "health": seen.health.document(),
        "freshness": dict(zip(("p50_ms", "p99_ms"), snapshot.freshness, strict=True)),
        "reads": {
            "per_s": rates.per_s,
            "errors_per_s": rates.errors_per_s,
            "within_bound_percent": rates.within_bound_percent,
            "staleness": seen.staleness,
        },
        "lag": worst_lag(snapshot),
        "end": {
            "version": snapshot.end_version or None,
            "confirmed": snapshot.end_confirmed,
            "age_ms": snapshot.end_age_ms,
        },
        "bus": bus_document(about.bus_lost_why or about.unheard),
        "counts": _counts(snapshot),
    }


def _section_shape(name: str, value: Any) -> object:
    """Return the facts that make a section a new one when they change: ages count by their steps."""
    if name == "lag":
        return {**value, "worst_ms": settled_ms(value["worst_ms"])}
    if name == "end":
        return {**value, "age_ms": settled_ms(value["age_ms"])}
    if name == "stores":
        return [{**each, "worst_lag_ms": settled_ms(each["worst_lag_ms"])} for each in value]
    return value


def worst_lag(snapshot: ClusterSnapshot) -> Document:
    """Return the worst lag that is known of all replicas, in versions and in time, and how many are unknown."""
    summaries, index = list(snapshot.totals.summaries.values()), snapshot.index
    known = [each for each in summaries if each.worst_lag is not None]
    worst = max(known, key=lambda each: each.worst_lag or 0, default=None)
    replica = None if worst is None else worst.worst
    task = None if replica is None else index.task[replica]
    return {
        "worst_batches": None if worst is None else worst.worst_lag,
        "worst_ms": max((each.worst_lag_ms for each in summaries if each.worst_lag_ms is not None), default=None),
        "unknown": sum(each.unknown for each in summaries),
        "store": None if task is None else index.stores_of[index.operator_id[task]][0],
        "partition": None if task is None else index.partition[task],
        "node_id": None if replica is None else index.node_ids[index.node[replica]],
    }


def _counts(snapshot: ClusterSnapshot) -> Document:
    summaries = snapshot.totals.summaries.values()
    return {
        "nodes_live": sum(view.is_live for view in snapshot.nodes.values()),
        "nodes_known": len(snapshot.nodes.keys() | {view.node_id for view in snapshot.holders}),
        "replicas": sum(each.replicas for each in summaries),
        **{kind: sum(getattr(each, kind) for each in summaries) for kind in COUNTED},
    }


def _store(seen: Observed, histories: Histories, route: StoreRoute) -> Document:
    summary = seen.snapshot.totals.summaries[route.operator_id]
    trend = seen.trends.get(route.name, NO_TREND)
    served = seen.served.get(route.name, NOTHING_SERVED)
    columns = route.codec.columns
    return {
        "store": route.name,
        "operator_id": route.operator_id,
        "partitions": route.partitions,
        **dict(zip(ROLES, summary.by_role, strict=True)),
        "restoring": summary.restoring,
        "unserved": summary.unserved,
        "worst_lag": summary.worst_lag,
        "worst_lag_ms": summary.worst_lag_ms,
        "unknown": summary.unknown,
        "trend": trend.direction,
        "eta_s": trend.eta_s,
        **served._asdict(),
        "history": histories.get(route.name, ()),
        "key": [{"name": column["name"], "type": column["type"]} for column in columns],
        "example": orjson.dumps([column["example"] for column in columns]).decode(),
    }
