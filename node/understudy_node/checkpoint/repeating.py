"""Decides whether a request to an object store is made again, and when (pure: no I/O, no clock).

Three limits hold together: tries of one call, time of one call, and a budget that all calls share. So a store that is
down or throttles is asked only a little more often than one that works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from understudy_shared.base.throttles import TokenBucket


@dataclass(frozen=True, slots=True)
class RepeatLimits:
    """The limits of one call: its tries, its time, and the waits between its tries."""

    max_tries: int = 4
    call_ms: float = 15_000.0
    """After this time a call is not tried again; a try in flight has a deadline of its own."""
    first_wait_ms: float = 100.0
    max_wait_ms: float = 2_000.0


def wait_ms(tries: int, limits: RepeatLimits, random: Callable[[], float]) -> float:
    """Return the wait after the try of that number (from 1): exponential, with full jitter."""
    longest_ms: float = min(limits.max_wait_ms, limits.first_wait_ms * 2.0 ** (tries - 1))
    return random() * longest_ms


class RepeatBudget:
    """A budget that lets `share` of all calls be repeated, and `per_s` a second. It starts full with `most` repeats."""

    def __init__(self, *, share: float = 0.1, per_s: float = 3.0, most: float = 20.0) -> None:
        self._share = share
        self._bucket = TokenBucket(per_s=per_s, burst=most, now_s=0)
        self._lock = Lock()

    def called(self) -> None:
        """Count a call's first try."""
        with self._lock:
            self._bucket.give(self._share)

    def take(self, now_ms: float) -> bool:
        """Whether one more try may be made now; it is taken from the budget."""
        with self._lock:
            return self._bucket.take(now_ms / 1000)
