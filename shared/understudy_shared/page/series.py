"""Lag, freshness and reads of the last hour, in memory (no I/O; time is passed in).

There is a point every ten seconds. A point of a series is two numbers, 16 bytes; there are at most MAX_SERIES series,
so all of them take at most 12 MB. Values that were unknown at a point, and missed points, are null.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.spark.temporal import utc_text

STEP_MS = 10_000
HISTORY_MINUTES = 60
POINTS = 360
SHOWN_POINTS = 60
"""Number of points of a store's history in the overview."""
MAX_SERIES = 2048

Number = float | None


class Point(NamedTuple):
    """The two numbers of a point: for lag the batches and the milliseconds, for freshness p50 and p99."""

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
        """Whether this step has no point yet."""
        ring = self._rings.get(Key(LAG))
        return ring is None or ring.last < step_of(now_ms)

    def note(self, now_ms: float, points: Mapping[Key, Point]) -> None:
        """Add a point to each series. If there is no room for all, the first ones win. A series without points for an
        hour is dropped.
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
        """Return the numbers of a series up to now, the oldest first; all are null if the series does not exist."""
        ring, end = self._rings.get(key), step_of(now_ms)
        steps = range(end - minutes * 60_000 // STEP_MS + 1, end + 1)
        points = [NOTHING if ring is None else ring.get(step) for step in steps]
        return [point.first for point in points], [point.second for point in points]


def history_document(
    kept: History, store: str | None, partition: int | None, *, now_ms: float, now_us: int, minutes: int
) -> dict[str, Any]:
    """Return the last minutes of the whole, of a store, or of a partition."""
    lag, time_lag = kept.series(Key(LAG, store, partition), now_ms, minutes)
    # Only the whole has these two series. For a store they are all null.
    p50, p99 = kept.series(Key(FRESHNESS, store, partition), now_ms, minutes)
    reads, _ = kept.series(Key(READS, store, partition), now_ms, minutes)
    series = {"lag_batches": lag, "time_lag_ms": time_lag, "freshness_p50_ms": p50, "freshness_p99_ms": p99}
    series["reads_per_s"] = reads
    return {"schema": 1, "step_ms": STEP_MS, "end": utc_text(now_us), "series": series}


def require_kept(kept: History, store: str | None, partition: int | None, partitions: int | None) -> None:
    """Raise ProblemError if a history is not kept. `partitions` is the number of partitions of the store."""
    kind = ProblemType.UNKNOWN_PATH
    if partition is None:
        return
    if partitions is None:
        kind, what, fix = ProblemType.BAD_REQUEST, "the partition is given without its store", "Give store, too"
    elif not 0 <= partition < partitions:
        what, fix = f"there is no partition {partition} of {store}", f"It has {partitions}, from 0 on"
    elif kept.is_full and Key(LAG, store, partition) not in kept:
        what = f"the history of this partition is not kept: there are at most {MAX_SERIES} series"
        fix = "Ask for the store without it"
    else:
        return
    raise ProblemError(Problem(kind, what, "partition", fix))


def step_of(now_ms: float) -> int:
    return int(now_ms // STEP_MS)


def thinned(values: Sequence[Number], points: int) -> list[Number]:
    """Reduce a series to `points` points, each the worst value of its group; null if any value of the group is null."""
    size = max(1, math.ceil(len(values) / points))
    groups = (values[first : first + size] for first in range(0, len(values), size))
    return [worst(group) for group in groups]


def worst(values: Iterable[Number]) -> Number:
    """Return the greatest value; None if any is unknown, or there are no values."""
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
