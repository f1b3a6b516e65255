"""The delay before a worker process that ended is started again (pure: time is passed in).

A process that ended once starts again at once, so a single crash costs readers as little as it can. One that keeps
ending waits twice as long each time: a crash at each start must not take the cores from the other workers.
"""

from __future__ import annotations

FIRST_DELAY_MS = 500
MAX_DELAY_MS = 30_000

STABLE_MS = 60_000
"""Life after which a process is stable: its next end counts as the first."""


class Restarts:
    """The ends of one worker, in a row."""

    def __init__(self) -> None:
        self.in_a_row = 0

    def ended(self, lived_ms: float) -> int:
        """Count an end; return after how many ms the process is to be started again."""
        if lived_ms >= STABLE_MS:
            self.in_a_row = 0
        self.in_a_row += 1
        if self.in_a_row == 1:
            return 0
        doublings = min(self.in_a_row - 2, 32)  # far beyond the longest delay: the number stays small
        return min(MAX_DELAY_MS, FIRST_DELAY_MS << doublings)
