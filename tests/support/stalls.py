"""Whether this process stood still while a test ran: then its failure may say something of the machine alone."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

LOOK_S = 0.05
STALL_MS = 500.0
"""Half of the shortest deadline that tests leave to a read."""


@dataclass
class Stalls:
    """A thread that sleeps, and measures how much longer it slept than it wanted to.

    That is long when the whole machine was stopped, or when one call kept every other thread from running.
    """

    longest_ms: float = 0.0

    def start(self) -> None:
        """Watch until the process ends."""
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def begin(self) -> None:
        """A test begins: what was before it says nothing of it."""
        self.longest_ms = 0.0

    def stood_still(self) -> bool:
        """Whether the process was stopped for `STALL_MS` or more since `begin`."""
        return self.longest_ms >= STALL_MS

    def _watch(self) -> None:
        monotonic, sleep = time.monotonic, time.sleep  # a test may replace them
        before_s = monotonic()
        while True:
            sleep(LOOK_S)
            now_s = monotonic()
            self.longest_ms = max(self.longest_ms, (now_s - before_s - LOOK_S) * 1000)
            before_s = now_s
