"""Lands flights in Redis Streams, at a chosen speed, and never many more than Spark has read.

What a committed batch of the query has read is trimmed, so that what lies in the streams is what is unread. A replay
that is started again goes on behind the last flight that was landed, at whatever speed; with a new checkpoint it begins
with the first flight. While Redis is away it waits, and tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from understudy_pipeline.demo.committed import has_begun, planned_until, read_until
from understudy_pipeline.demo.flights import Flight
from understudy_pipeline.demo.schedule import Pace, slices, slices_due
from understudy_pipeline.demo.streams import FlightStreams, place_of
from understudy_shared.bus.base import BusError
from understudy_shared.clock import Clock

log = logging.getLogger(__name__)

MAX_UNREAD = 12
"""Slices, when they are busy ones; more than two batches."""

_POLL_S = 0.05
_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 5.0
"""After Redis was not there: from the first, doubled, up to the second."""


class Replay:
    """Replays `flights` for the query of a checkpoint. One thread runs it; `stop` may come from any."""

    def __init__(
        self, flights: Sequence[Flight], streams: FlightStreams, checkpoint: Path, *, pace: Pace, clock: Clock
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
        """Flights that were landed, in this and earlier runs."""

    def prepare(self) -> bool:
        """Find out where to go on, before the query starts. Waits a little and gives False when Redis is away."""
        try:
            if not has_begun(self._checkpoint):
                self._streams.clear()
            self.landed = self._restored()
        except BusError as error:
            self._wait(error)
            return False
        return True

    def run(self) -> bool:
        """Until everything was landed and read (True), or `stop` (False). Raises OffsetError."""
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
        """Where to go on; in a Redis that was emptied, behind what the next batch reads if it was planned already."""
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
        # What was being written when Redis went may be there or not: it is written again.
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
