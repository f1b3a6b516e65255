"""When which flights are replayed (pure): the year is cut into slices of simulated time, and slices are due in turn.

Hours without a departure are passed over, so that something moves all the time. A replay that was held up does not make
up for it by a burst: its clock stood still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

LAND_EVERY_S = 0.5
"""Real time between two slices, if `speed_up` allows: a micro-batch of the demo's query takes about as long."""

SHORTEST_SLICE_S = 60
"""Of simulated time: flights are scheduled by the minute."""

SLICES_PER_BATCH = 4
"""What the query takes at once when it is behind, and when they are busy ones."""

_BUSIEST_HALF_HOUR = 53
"""Flights in it."""

_BUSY_MIN = 25
"""Of the shortest slices: the busiest minute has fewer."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A slice of `slice_s` simulated seconds is due every `interval_ms`."""

    slice_s: int
    interval_ms: float

    @property
    def busy_slice(self) -> int:
        """Flights of a slice when there are most: more than nearly every slice has."""
        return max(_BUSY_MIN, ceil(_BUSIEST_HALF_HOUR * self.slice_s / 1800))


class Due(NamedTuple):
    """How many slices to land now, and when the next one is due."""

    slices: int
    next_ms: float


def pace_of(speed_up: float) -> Pace:
    """`speed_up` is simulated seconds per real second."""
    slice_s = max(SHORTEST_SLICE_S, ceil(speed_up * LAND_EVERY_S))
    return Pace(slice_s, 1000 * slice_s / speed_up)


def slices(times_s: Sequence[int], slice_s: int, *, first: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges (start, end) of positions in ascending `times_s`, from `first` on: each within one slice, none empty."""
    start = first
    while start < len(times_s):
        limit_s = (times_s[start] // slice_s + 1) * slice_s
        end = start + 1
        while end < len(times_s) and times_s[end] < limit_s:
            end += 1
        yield start, end
        start = end


def slices_due(*, now_ms: float, next_ms: float, interval_ms: float, unread: int, max_unread: int) -> Due:
    """The slices to land now: those whose time has come, as far as there is room among the unread.

    When there is no room the schedule slips: what is held up is due as soon as there is, and the rest after that.
    """
    if now_ms < next_ms:
        return Due(0, next_ms)
    ripe = 1 + int((now_ms - next_ms) // interval_ms)
    landing = min(ripe, max(0, max_unread - unread))
    return Due(landing, now_ms if landing < ripe else next_ms + ripe * interval_ms)
