"""Writes flights to Redis Streams at a chosen speed, and never far ahead of Spark.

Entries that a committed batch has read are trimmed, so that the streams hold only unread entries. A restarted replay
continues behind the last flight it wrote, at any speed. With a new checkpoint it begins with the first flight. While
Redis cannot be reached, the replay waits and retries.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from understudy_pipeline.demo.committed import has_begun, planned_until, read_until
from understudy_pipeline.demo.flights import Flight
from understudy_pipeline.demo.schedule import ReplayPace, slices, slices_due
from understudy_pipeline.demo.streams import FlightStreams, place_of
from understudy_shared.base.clock import Clock
from understudy_shared.bus.base import BusError

log = logging.getLogger(__name__)

MAX_UNREAD = 12
"""Most unread slices, counted as busy ones: more than two batches."""

_POLL_S = 0.05
_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 5.0
"""Pause before the next try after Redis failed. It doubles from the first to the second."""


class Replay:
    """Replays `flights` for the query of a checkpoint. One thread runs it; any thread may call `stop`."""

    def __init__(
        self, flights: Sequence[Flight], streams: FlightStreams, checkpoint: Path, *, pace: ReplayPace, clock: Clock
    ) -> None:
        self._flights = flights
        self._times_s = [flight.event_time for flight in flights]
        self._streams = streams
        self._checkpoint = checkpoint
        self._pace = pace
        self._clock = clock
        self._stopping = threading.Event()
        self._retry_s = _RETRY_MIN_S
        self.landed = 0
        """Flights that were written, in this and earlier runs."""

    def prepare(self) -> bool:
        """Find where to continue, before the query starts. Returns False after a pause if Redis cannot be reached."""
        try:
            if not has_begun(self._checkpoint):
                self._streams.clear()
            self.landed = self._restored()
        except BusError as error:
            self._wait(error)
            return False
        return True

    def run(self) -> bool:
        """Run until everything is written and read (True), or until `stop` (False). Raises OffsetError."""
        while not self._stopping.is_set():
            try:
                if self._replay():
                    log.info("replayed %d flights", self.landed, extra={"action": "replayed"})
                    return True
            except BusError as error:
                self._wait(error)
        return False

    def stop(self) -> None:
        self._stopping.set()

    def _restored(self) -> int:
        """Restore the streams, and return how many flights are written.

        If Redis was emptied, this writes again what a batch that is logged and not committed will read.
        """
        read, planned = read_until(self._checkpoint), planned_until(self._checkpoint)
        if not self._streams.restore(read) and self._streams.landed():
            return self._streams.landed()
        first = min((place_of(cursor) + 1 for cursor in read.values()), default=0)
        end = min(len(self._flights), max([first, *(place_of(cursor) + 1 for cursor in planned.values())]))
        self._streams.land(self._flights, first, end)
        return end

    def _wait(self, error: BusError) -> None:
        if self._retry_s == _RETRY_MIN_S:
            log.warning("the replay waits: %s", error, extra={"action": "replay-waits"})
        self._stopping.wait(self._retry_s)
        self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    def _replay(self) -> bool:
        # A write that was under way when Redis failed may or may not have succeeded: repeat it.
        left = slices(self._times_s, self._pace.slice_s, first=self.landed)
        following = next(left, None)
        next_ms = self._clock.monotonic_ms()
        while True:
            unread = self._streams.trim(read_until(self._checkpoint))
            self._retry_s = _RETRY_MIN_S
            if following is None and not unread:
                return True
            due = slices_due(
                now_ms=self._clock.monotonic_ms(),
                next_ms=next_ms,
                interval_ms=self._pace.interval_ms,
                unread=ceil(unread / self._pace.busy_slice),
                max_unread=MAX_UNREAD,
            )
            next_ms = due.next_ms
            for _ in range(due.slices):
                if following is not None:
                    self._streams.land(self._flights, *following)
                    _, self.landed = following
                    following = next(left, None)
            if self._stopping.wait(_POLL_S):
                return False
