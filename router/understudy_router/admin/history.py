"""Lag, freshness and reads of the last hour, in memory (no I/O; time is passed in).

There is a point each ten seconds. A point of a series is two numbers, 16 bytes; there are at most MAX_SERIES series, so
all of them take 12 MB at most. A value that was unknown at a point is null, and so is a point that was missed.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from understudy_router.admin.facts import Facts
from understudy_router.admin.reads_served import Rates
from understudy_router.admin.replica_index import WARMUP
from understudy_router.admin.snapshot import Snapshot

STEP_MS = 10_000
POINTS = 360
MAX_SERIES = 2048

Number = float | None


class Point(NamedTuple):
    """The two numbers of one moment: of lag the batches and the milliseconds, of freshness p50 and p99."""

    first: Number
    second: Number


class Key(NamedTuple):
    """The name of a series: of the whole (no store), of a store, or of one of its partitions."""

    name: str
    store: str | None = None
    partition: int | None = None


LAG, FRESHNESS, READS = "lag", "freshness", "reads"

NOTHING = Point(None, None)


class _Ring:
    """The last POINTS points; `last` is the step of the newest."""

    __slots__ = ("_values", "last")

    def __init__(self, step: int) -> None:
        self.last = step
        self._values = array("d", [math.nan]) * (2 * POINTS)

    def put(self, step: int, point: Point) -> None:
        for skipped in range(max(self.last + 1, step - POINTS + 1), step):
            self._set(skipped, NOTHING)
        self.last = step
        self._set(step, point)

    def get(self, step: int) -> Point:
        if not self.last - POINTS < step <= self.last:
            return NOTHING
        place = 2 * (step % POINTS)
        return Point(_number(self._values[place]), _number(self._values[place + 1]))

    def _set(self, step: int, point: Point) -> None:
        place = 2 * (step % POINTS)
        self._values[place] = math.nan if point.first is None else point.first
        self._values[place + 1] = math.nan if point.second is None else point.second


class History:
    """All series."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._rings: dict[Key, _Ring] = {}

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for a new series."""
        return len(self._rings) >= self._max_series

    def __contains__(self, key: Key) -> bool:
        return key in self._rings

    def is_due(self, now_ms: float) -> bool:
        """Whether no point of this step was noted yet."""
        ring = self._rings.get(Key(LAG))
        return ring is None or ring.last < step_of(now_ms)

    def note(self, now_ms: float, points: Mapping[Key, Point]) -> None:
        """Note a point of each series. Those given first have room first; a series without points for an hour is
        dropped.
        """
        step = step_of(now_ms)
        for key in [key for key, ring in self._rings.items() if ring.last <= step - POINTS]:
            del self._rings[key]
        for key, point in points.items():
            if key not in self._rings and not self.is_full:
                self._rings[key] = _Ring(step - 1)
            ring = self._rings.get(key)
            if ring is not None and step >= ring.last:
                ring.put(step, point)

    def series(self, key: Key, now_ms: float, minutes: int) -> tuple[list[Number], list[Number]]:
        """Return the numbers of a series up to now, oldest first; all null for a series that does not exist."""
        ring, end = self._rings.get(key), step_of(now_ms)
        steps = range(end - minutes * 60_000 // STEP_MS + 1, end + 1)
        points = [NOTHING if ring is None else ring.get(step) for step in steps]
        return [point.first for point in points], [point.second for point in points]


def points_of(
    snapshot: Snapshot, rates: Rates, max_series: int = MAX_SERIES
) -> Generator[None, None, dict[Key, Point]]:
    """Return the points of now, in slices: of the whole, of each store, and of as many partitions as can have a
    series.
    """
    summaries = snapshot.totals.summaries
    lags = summaries.values()
    found = {
        Key(LAG): Point(worst(each.known_lag for each in lags), worst(each.known_lag_ms for each in lags)),
        Key(FRESHNESS): Point(*snapshot.freshness),
        Key(READS): Point(rates.per_s, rates.errors_per_s),
    }
    for route in snapshot.index.routes:
        summary = summaries[route.operator_id]
        found[Key(LAG, route.name)] = Point(summary.known_lag, summary.known_lag_ms)
    for key, point in _partitions(snapshot):
        if len(found) > max_series:
            break
        found[key] = point
        yield
    return found


def _partitions(snapshot: Snapshot) -> Iterator[tuple[Key, Point]]:
    index = snapshot.index
    for route in index.routes:
        for partition, task in enumerate(index.tasks_of_store(route)):
            yield Key(LAG, route.name, partition), _partition(snapshot, task)


def _partition(snapshot: Snapshot, task: int) -> Point:
    """Return the lag of the worst live replica that is not a warm-up."""
    index = snapshot.index
    live: list[Facts] = []
    for replica in index.holders(task):
        facts = snapshot.facts(replica)
        if index.role[replica] != WARMUP and facts.standing.is_live:
            live.append(facts)
    return Point(worst(each.offset_lag for each in live), worst(each.time_lag_ms for each in live))


def step_of(now_ms: float) -> int:
    return int(now_ms // STEP_MS)


def thinned(values: Sequence[Number], points: int) -> list[Number]:
    """Return so many points of a longer series, each the worst of its group; null where any of the group is null."""
    size = max(1, math.ceil(len(values) / points))
    groups = (values[first : first + size] for first in range(0, len(values), size))
    return [worst(group) for group in groups]


def worst(values: Iterable[Number]) -> Number:
    """Return the greatest value; null when any is unknown, or there are no values."""
    found: list[float] = []
    for value in values:
        if value is None:
            return None
        found.append(value)
    return max(found, default=None)


def _number(value: float) -> Number:
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value
