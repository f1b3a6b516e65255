"""One thread for each server does all I/O with it: what the desk says is next, again and again.

Rule: a server that is slow, away or hangs holds up nobody but its own thread.
"""

from __future__ import annotations

import logging
import threading

from understudy_pipeline.aligned.shared_read_ahead import CountPartitions, Fetch, Seek, SharedReadAhead
from understudy_pipeline.inputs.protocol import Input, InputError
from understudy_shared.clock import Clock

log = logging.getLogger(__name__)

FIRST_BACKOFF_MS = 100
MAX_BACKOFF_MS = 5_000
"""Between two tries of a server that does not answer; doubled from the first."""

REST_MS = 100
"""Longest time until the desk is asked again after it had nothing to do."""


class Prefetch:
    """Reads ahead on one input, from `start` to `stop`. The input is closed by its thread."""

    def __init__(
        self, shared: SharedReadAhead, index: int, reads: Input, clock: Clock, *, request_timeout_ms: int
    ) -> None:
        self._shared = shared
        self._index = index
        self._input = reads
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._backoff_ms = FIRST_BACKOFF_MS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"understudy-prefetch-{index}", daemon=True)

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def stop(self) -> None:
        """No further turn is begun. Does not wait."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended by then; one whose input hangs is left behind, and ends with its call."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def run_once(self) -> float:
        """Do what is next. Milliseconds to wait before the turn after it, 0 for none."""
        try:
            return self._run_request()
        except InputError as error:
            self._shared.mark_unreachable(self._index, error)
            wait_ms, self._backoff_ms = self._backoff_ms, min(2 * self._backoff_ms, MAX_BACKOFF_MS)
            return wait_ms

    def _run_request(self) -> float:
        asked_ms = self._clock.monotonic_ms()
        match request := self._shared.next_request(self._index):
            case CountPartitions():
                self._shared.set_partition_counts(
                    self._index, self._input.partitions(timeout_ms=self._request_timeout_ms)
                )
            case Seek():
                self._input.seek(request.cursors, timeout_ms=self._request_timeout_ms)
                self._shared.seek_done(self._index, request)
            case Fetch():
                fetched = self._input.fetch(request.wanted, timeout_ms=request.wait_ms)
                self._shared.add_fetched(self._index, request, fetched, asked_ms=asked_ms)
            case None:
                self._shared.wait(REST_MS)
        self._backoff_ms = FIRST_BACKOFF_MS
        return 0

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if wait_ms := self.run_once():
                    self._stopping.wait(wait_ms / 1000)
        except Exception as error:  # whatever it is, the query must not wait for records that nobody fetches
            self._shared.stop_input(self._index, error)
        finally:
            self._input.close()
