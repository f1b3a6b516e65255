"""Whether this process stood still while a test ran: then its failure may say something of the machine alone."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

LOOK_S = 0.05
STALL_MS = 500.0
"""Half of the shortest deadline that tests leave to a read."""


@dataclass
class Stalls:
    """A thread that sleeps, and measures how much longer it slept than it wanted to.

    That is long when the whole machine was stopped, or when one call kept every other thread from running.
    """

    longest_ms: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Watch until the process ends, or until `stop`."""
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._done.set()

    def begin(self) -> None:
        """A test begins: what was before it says nothing of it."""
        self.longest_ms = 0.0

    def stood_still(self) -> bool:
        """Whether the process was stopped for `STALL_MS` or more since `begin`."""
        return self.longest_ms >= STALL_MS

    def _watch(self) -> None:
        monotonic = time.monotonic
        before_s = monotonic()
        while not self._done.wait(LOOK_S):
            now_s = monotonic()
            self.longest_ms = max(self.longest_ms, (now_s - before_s - LOOK_S) * 1000)
            before_s = now_s
