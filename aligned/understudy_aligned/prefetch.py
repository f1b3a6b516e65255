"""A thread for each server does all I/O with it: it runs one request of `SharedReadAhead` after another.

Rule: a server that is slow, unreachable or hangs delays only its own thread.
"""

from __future__ import annotations

import logging
import threading

from understudy_aligned.input_requests import CountPartitions, Fetch, Seek
from understudy_aligned.inputs.protocol import Input, InputError
from understudy_aligned.shared_read_ahead import SharedReadAhead
from understudy_shared.base.clock import Clock

log = logging.getLogger(__name__)

FIRST_BACKOFF_MS = 100
MAX_BACKOFF_MS = 5_000
"""Pause before the next try of a server that does not answer. It doubles from the first to this."""

REST_MS = 100
"""Longest wait before the thread looks for a request again."""


class Prefetch:
    """A thread that reads ahead on one input from `start` to `stop`. It closes the input."""

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
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further request. Does not wait."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread, and return whether it has ended. If its input hangs, it ends when that call returns."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def run_once(self) -> float:
        """Run the next request. Return the milliseconds to wait before the one after it."""
        try:
            return self._run_request()
        except InputError as error:
            self._shared.mark_unreachable(self._index, error)
            wait_ms, self._backoff_ms = self._backoff_ms, min(2 * self._backoff_ms, MAX_BACKOFF_MS)
            return wait_ms
        finally:
            self._shared.set_input_state(self._index, self._input.losses, self._input.client_queue)

    def _run_request(self) -> float:
        asked_ms = self._clock.monotonic_ms()
        match request := self._shared.next_request(self._index):
            case CountPartitions():
                counts = self._input.partitions(timeout_ms=self._request_timeout_ms)
                ids = self._input.topic_ids(counts.keys(), timeout_ms=self._request_timeout_ms)
                self._shared.set_topics(self._index, counts, ids)
            case Seek():
                self._input.seek(request.cursors, timeout_ms=self._request_timeout_ms)
                self._shared.seek_done(self._index, request)
            case Fetch():
                fetched = self._input.fetch(request.wanted, timeout_ms=request.wait_ms)
                self._shared.add_fetched(self._index, request, fetched, asked_ms=asked_ms)
            case None:
                self._shared.wait(REST_MS)
        if not self._shared.is_away(self._index):
            self._backoff_ms = FIRST_BACKOFF_MS
        return 0

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if wait_ms := self.run_once():
                    self._stopping.wait(wait_ms / 1000)
        except Exception as error:  # any error: the query must not wait for records that no thread fetches
            self._shared.stop_input(self._index, error)
        finally:
            self._input.close()
