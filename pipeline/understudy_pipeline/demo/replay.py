"""Lands flights as files for Spark's file source, at a chosen speed, and never many more than Spark has read.

A file appears complete, by a rename, under a name that says which flights it holds. The query deletes files that it has
read (`cleanSource`), so that what lies in the folder is what is unread, but for the files of the last batch. A replay
that is started again goes on behind the last flight that was landed, at whatever speed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from understudy_pipeline.demo.flights import Flight
from understudy_pipeline.demo.schedule import Pace, files_due, slices
from understudy_shared.clock import Clock

log = logging.getLogger(__name__)

MAX_FILES_PER_BATCH = 4
"""What the query takes at once when it is behind."""

MAX_UNREAD = 12
"""More than two batches: the files of the last batch lie there until the next one is planned."""

_LOOK_EVERY_S = 0.05
_POSITION = ".replayed"
"""Hidden from Spark: the number of flights that were landed."""


class Replay:
    """Replays `flights` into `folder`. One thread runs it; `stop` may come from any."""

    def __init__(self, flights: Sequence[Flight], folder: Path, *, pace: Pace, clock: Clock) -> None:
        self._flights = flights
        self._folder = folder
        self._pace = pace
        self._clock = clock
        self._stopping = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self.landed = landed_flights(folder)
        """Flights that were landed, in this and earlier runs."""
        self._last_ns = max((path.stat().st_mtime_ns for path in unread_files(folder)), default=0)

    def run(self) -> bool:
        """Until everything was landed (True), or `stop` (False)."""
        times_s = [flight.event_time for flight in self._flights]
        left = slices(times_s, self._pace.slice_s, first=self.landed)
        following = next(left, None)
        next_ms = self._clock.monotonic_ms()
        while following is not None:
            due = files_due(
                now_ms=self._clock.monotonic_ms(),
                next_ms=next_ms,
                interval_ms=self._pace.interval_ms,
                unread=len(unread_files(self._folder)),
                max_unread=MAX_UNREAD,
            )
            next_ms = due.next_ms
            for _ in range(due.files):
                if following is not None:
                    self._land(*following)
                    following = next(left, None)
            if self._stopping.wait(_LOOK_EVERY_S):
                return following is None
        log.info("replayed %d flights", self.landed, extra={"action": "replayed"})
        return True

    def stop(self) -> None:
        self._stopping.set()

    def _land(self, start: int, end: int) -> None:
        name = f"{start:07d}-{end:07d}.json"
        draft = self._folder / f".{name}"
        draft.write_bytes(b"".join(flight.json_line() for flight in self._flights[start:end]))
        # The file source orders files by modification time, in milliseconds: two must not have the same.
        self._last_ns = max(time.time_ns(), self._last_ns + 1_000_000)
        os.utime(draft, ns=(self._last_ns, self._last_ns))
        draft.rename(self._folder / name)
        self.landed = end
        position = self._folder / f"{_POSITION}.new"
        position.write_text(str(end))
        position.rename(self._folder / _POSITION)


def unread_files(folder: Path) -> list[Path]:
    """Files that Spark has not deleted yet."""
    return [path for path in folder.glob("*.json") if not path.name.startswith(".")]


def landed_flights(folder: Path) -> int:
    """How many flights earlier runs have landed: a run may have died between a file and the note of its position."""
    position = folder / _POSITION
    noted = int(position.read_text()) if position.exists() else 0
    return max([noted, *(int(path.stem.rpartition("-")[2]) for path in unread_files(folder))])
