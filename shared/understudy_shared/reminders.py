"""When to log again what stays wrong: at once, after ten seconds, then after twice as long each time (pure)."""

from __future__ import annotations

FIRST_GAP_MS = 10_000
MAX_GAP_MS = 600_000


class Reminder:
    """Decides when one lasting fault is logged. It starts again when the fault was gone."""

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
        """The fault is gone."""
        self._next_ms, self._gap_ms = float("-inf"), FIRST_GAP_MS
