"""The pauses of an event loop: how late its timers come, how much of that was its own work, and what it did meanwhile.

A timer is due every TICK_MS. What it is late by is a pause: nothing else of this loop ran either. A thread looks at
what the loop runs while a pause lasts. CPU time of the process during the pause tells its own work from a host that
took the core.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

TICK_MS = 2.0
LONG_MS = 10.0
"""Length of a pause from which on the running code of the loop is recorded."""

STACK = 6
"""Innermost calls that are kept of it."""


@dataclass(slots=True)
class Pauses:
    """The pauses since the last `take`."""

    late_ms: list[float] = field(default_factory=list)
    longest_ms: float = 0.0
    longest_cpu_ms: float = 0.0
    """CPU time of the process during the longest pause."""
    longest_own_ms: float = 0.0
    """The CPU time of the longest pause by CPU time. It leaves out the time that the host took from the process."""
    longest_collection_ms: float = 0.0
    """The longest time that the collector of garbage took at once: a part of a pause."""
    doing: Counter[str] = field(default_factory=Counter)
    """The code that ran during long pauses."""

    def described(self) -> dict[str, object]:
        ranked = sorted(self.late_ms) or [0.0]
        return {
            "longest_ms": self.longest_ms,
            "longest_cpu_ms": self.longest_cpu_ms,
            "longest_own_ms": self.longest_own_ms,
            "longest_collection_ms": self.longest_collection_ms,
            "p99_ms": ranked[int(len(ranked) * 0.99)],
            "p50_ms": ranked[len(ranked) // 2],
            "above_20_ms": sum(late > 20 for late in ranked),
            "seconds": len(ranked) * TICK_MS / 1000,
            "doing": self.doing.most_common(8),
        }


class PauseMeter:
    """Watches the loop that it is started on, from the first time on that its pauses are forgotten: its timers and its
    looks cost a few hundredths of a core.
    """

    def __init__(self) -> None:
        self._seen = Pauses()
        self._due_s = 0.0
        self._cpu_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._collects_s = 0.0
        self._watches = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()

    def take(self, *, forget: bool = True) -> dict[str, object]:
        """Return the pauses since they were forgotten last; from any thread."""
        seen = self._seen
        if forget:
            self._seen = Pauses()
            if self._loop is not None and not self._watches:
                self._watches = True
                self._loop.call_soon_threadsafe(self._begin)
        return seen.described()

    def _begin(self) -> None:
        self._next()
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._look, daemon=True).start()

    def _next(self) -> None:
        assert self._loop is not None
        self._due_s, self._cpu_s = time.perf_counter() + TICK_MS / 1000, time.process_time()
        self._loop.call_later(TICK_MS / 1000, self._tick)

    def _tick(self) -> None:
        seen = self._seen
        late_ms, cpu_ms = (time.perf_counter() - self._due_s) * 1000, (time.process_time() - self._cpu_s) * 1000
        seen.late_ms.append(late_ms)
        if late_ms > seen.longest_ms:
            seen.longest_ms, seen.longest_cpu_ms = late_ms, cpu_ms
        seen.longest_own_ms = max(seen.longest_own_ms, min(late_ms, cpu_ms))
        self._next()

    def _collected(self, phase: str, _: object) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._collects_s = now_s
        else:
            took_ms = (now_s - self._collects_s) * 1000
            self._seen.longest_collection_ms = max(self._seen.longest_collection_ms, took_ms)

    def _look(self) -> None:
        while True:
            time.sleep(LONG_MS / 2000)
            if (time.perf_counter() - self._due_s) * 1000 > LONG_MS:
                frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001  # there is no other way to look
                calls = traceback.extract_stack(frame)[-STACK:]
                self._seen.doing[" > ".join(f"{call.name}:{call.lineno}" for call in calls)] += 1
