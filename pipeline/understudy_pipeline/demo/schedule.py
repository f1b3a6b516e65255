"""The schedule of the replay (pure): the year is cut into slices of simulated time, which become due one by one.

Hours without a departure are skipped, so that there is always something to see. A replay that was delayed does not
catch up in a burst: its schedule shifts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

LAND_EVERY_S = 0.5
"""Real time between two slices, if `speed_up` allows it. A micro-batch of the demo's query takes about as long."""

SHORTEST_SLICE_S = 60
"""Shortest slice in simulated time: flights are scheduled by the minute."""

SLICES_PER_BATCH = 4
"""Busy slices in one micro-batch when the query is behind."""

_BUSIEST_HALF_HOUR = 53
"""Flights in the busiest half hour."""

_BUSY_MIN = 25
"""Flights in a busy slice of the shortest length: the busiest minute has fewer."""


@dataclass(frozen=True, slots=True)
class ReplayPace:
    """A slice of `slice_s` simulated seconds is due every `interval_ms`."""

    slice_s: int
    interval_ms: float

    @property
    def busy_slice(self) -> int:
        """Flights in a busy slice: nearly every slice has fewer."""
        return max(_BUSY_MIN, ceil(_BUSIEST_HALF_HOUR * self.slice_s / 1800))


class Due(NamedTuple):
    """The number of slices to write now, and when the next one is due."""

    slices: int
    next_ms: float


def pace_of(speed_up: float) -> ReplayPace:
    """Return the pace for `speed_up` simulated seconds per real second."""
    slice_s = max(SHORTEST_SLICE_S, ceil(speed_up * LAND_EVERY_S))
    return ReplayPace(slice_s, 1000 * slice_s / speed_up)


def slices(times_s: Sequence[int], slice_s: int, *, first: int = 0) -> Iterator[tuple[int, int]]:
    """Cut ascending `times_s` into slices from index `first` on. Yield index ranges (start, end), each with a row."""
    start = first
    while start < len(times_s):
        limit_s = (times_s[start] // slice_s + 1) * slice_s
        end = start + 1
        while end < len(times_s) and times_s[end] < limit_s:
            end += 1
        yield start, end
        start = end


def slices_due(*, now_ms: float, next_ms: float, interval_ms: float, unread: int, max_unread: int) -> Due:
    """Return the slices to write now: those that are due, as far as `max_unread` allows.

    Without room the schedule shifts: a delayed slice is due as soon as there is room, and the rest follow it.
    """
    if now_ms < next_ms:
        return Due(0, next_ms)
    ripe = 1 + int((now_ms - next_ms) // interval_ms)
    landing = min(ripe, max(0, max_unread - unread))
    return Due(landing, now_ms if landing < ripe else next_ms + ripe * interval_ms)
