"""The trend of a lag, and the pace of commits and reads, from recent observations (pure; time is passed in)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Literal, NamedTuple

WINDOW_MS = 60_000
MAX_SEEN = 64
"""Most moments of a window that are kept."""

MIN_BATCHES = 3
MIN_MS = 30_000
"""Shortest window of a trend, in ms, unless it has MIN_BATCHES commits: between two commits every lag is a sawtooth."""

MIN_CHANGE = 2
"""Fewest versions by which a lag must change to be called growing or shrinking."""

PACE_KEPT = 32
"""Number of changes of the end from which the usual time between commits is computed."""

Direction = Literal["steady", "growing", "shrinking", "unknown"]


class LagSample(NamedTuple):
    """A lag at one moment, and the end then. `lag` is `None` while it is unknown."""

    at_ms: float
    end_version: int
    lag: int | None


class Trend(NamedTuple):
    """The direction of a lag, and the seconds until it is gone while it shrinks."""

    direction: Direction
    eta_s: float | None


NO_TREND = Trend("unknown", None)


def trend_of(seen: Sequence[LagSample]) -> Trend:
    """Compute the trend of a window, oldest first: by the least squares of all of it."""
    # Each guard excludes a false trend: an unknown lag, too few commits to see past the sawtooth, a single step.
    if not seen or any(each.lag is None for each in seen):
        return NO_TREND
    took_ms, batches = seen[-1].at_ms - seen[0].at_ms, seen[-1].end_version - seen[0].end_version
    if took_ms <= 0 or len(seen) < MIN_BATCHES or (batches < MIN_BATCHES and took_ms < MIN_MS):
        return NO_TREND
    slope = _slope([(each.at_ms, each.lag or 0) for each in seen])
    change, lag = slope * took_ms, seen[-1].lag or 0
    if change >= MIN_CHANGE and lag > 0:
        # A replica that was just opened is a step: it does not rise in both halves of the window.
        half = len(seen) // 2
        rises = all(
            _slope([(each.at_ms, each.lag or 0) for each in part]) > 0 for part in (seen[: half + 1], seen[half:])
        )
        return Trend("growing" if rises else "steady", None)
    if change <= -MIN_CHANGE and lag > 0:
        return Trend("shrinking", round(lag / -slope / 1000, 1))
    return Trend("steady", None)


def _slope(points: Sequence[tuple[float, int]]) -> float:
    """Return the slope by least squares: lag per millisecond. The points must not all be of one moment."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


class Trends:
    """The lags of stores within the window."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[LagSample]] = {}

    def see(self, now_ms: float, end_version: int, lags: Iterable[tuple[str, int | None]]) -> None:
        """Take in the lag of each store."""
        before, self._seen = self._seen, {}
        for store, lag in lags:
            seen = self._seen[store] = before.get(store) or deque(maxlen=MAX_SEEN)
            while seen and (now_ms - seen[0].at_ms > WINDOW_MS or end_version < seen[-1].end_version):
                seen.popleft()
            if not seen or now_ms - seen[-1].at_ms >= WINDOW_MS / MAX_SEEN:
                seen.append(LagSample(now_ms, end_version, lag))

    def of(self, store: str) -> Trend:
        return trend_of(tuple(self._seen.get(store, ())))

    def of_all(self, stores: Iterable[str]) -> Generator[None, None, dict[str, Trend]]:
        """Compute the trends of many stores, in slices."""
        found: dict[str, Trend] = {}
        for store in stores:
            found[store] = self.of(store)
            yield
        return found


class Pace:
    """The time between commits of the query, by the ends that were seen."""

    def __init__(self) -> None:
        self._changes: deque[tuple[float, int]] = deque(maxlen=PACE_KEPT)
        self._lineage: str | None = None

    def see(self, now_ms: float, lineage: str | None, end_version: int) -> None:
        """Take in the newest end. The pace begins again with another history, or one that was cut back."""
        if lineage != self._lineage or (self._changes and end_version < self._changes[-1][1]):
            self._changes.clear()
            self._lineage = lineage
        if not self._changes or end_version > self._changes[-1][1]:
            self._changes.append((now_ms, end_version))

    @property
    def usual_ms(self) -> float | None:
        """Return the usual time between two commits in ms; `None` before a few of them."""
        if not self._changes:
            return None
        (began_ms, first), (ended_ms, last) = self._changes[0], self._changes[-1]
        return (ended_ms - began_ms) / (last - first) if last - first >= MIN_BATCHES else None

    def silent_ms(self, now_ms: float) -> float:
        """Return how long ago the end last changed, as far as it was seen, in ms."""
        return now_ms - self._changes[-1][0] if self._changes else 0.0
