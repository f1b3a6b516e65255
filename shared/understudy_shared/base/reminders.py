"""Limits on log lines: reminders of a fault that lasts, and one line for many equal ones (pure: time is passed in)."""

from __future__ import annotations

from collections.abc import Hashable

FIRST_GAP_MS = 10_000
MAX_GAP_MS = 600_000

REPEAT_MS = 60_000
MAX_KINDS = 1024


class Reminder:
    """A schedule for logging one lasting fault: at once, after ten seconds, then after twice as long each time. It
    starts again when the fault was gone.
    """

    def __init__(self) -> None:
        self._next_ms = float("-inf")
        self._gap_ms = FIRST_GAP_MS

    def is_due(self, now_ms: float) -> bool:
        """Whether to log the fault now; if so, the next time is later."""
        if now_ms < self._next_ms:
            return False
        self._next_ms, self._gap_ms = now_ms + self._gap_ms, min(2 * self._gap_ms, MAX_GAP_MS)
        return True

    def reset(self) -> None:
        """Start again: the fault is gone."""
        self._next_ms, self._gap_ms = float("-inf"), FIRST_GAP_MS


class LogThrottle:
    """A filter for log lines that a flood of requests would write: it admits one line of each kind in a minute."""

    def __init__(self, *, max_kinds: int = MAX_KINDS, forgets: bool = False) -> None:
        """Admit lines of at most `max_kinds` kinds in a minute. With `forgets`, admit them all, and forget the kind
        that was logged longest ago: for logs that something else bounds.
        """
        self._max_kinds = max_kinds
        self._forgets = forgets
        self._refused = 0
        """Lines of kinds for which there was no room, since the last line that was admitted."""
        self._logged: dict[Hashable, tuple[float, int]] = {}
        """The time at which a line of each kind was logged last, and how many were left out since; the oldest first."""

    def admit(self, kind: Hashable, now_ms: float) -> dict[str, int] | None:
        """Return the field that says how many lines of this kind were left out since the last one, if any were, with
        those of kinds that had no room. None: leave this one out as well.
        """
        logged_ms, left_out = self._logged.get(kind, (float("-inf"), 0))
        if now_ms - logged_ms < REPEAT_MS:
            self._logged[kind] = (logged_ms, left_out + 1)
            return None
        self._logged.pop(kind, None)
        if len(self._logged) >= self._max_kinds:
            oldest, (oldest_ms, _) = next(iter(self._logged.items()))
            if now_ms - oldest_ms < REPEAT_MS and not self._forgets:
                self._refused += 1
                return None
            del self._logged[oldest]
        self._logged[kind] = (now_ms, 0)
        left_out, self._refused = left_out + self._refused, 0
        return {"left_out": left_out} if left_out else {}
