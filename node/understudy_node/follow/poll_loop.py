"""The thread that polls: turn after turn until it is stopped, earlier when it is woken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import Context, copy_context

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.follow.watch import log_watch
from understudy_shared.base.clock import Clock

log = logging.getLogger(__name__)


class PollLoop:
    """The thread that runs `turn`, which returns the ms until the next turn. `failure` is the bug that ended it."""

    def __init__(self, turn: Callable[[], float], files: CheckpointFiles, *, floor_ms: float, clock: Clock) -> None:
        """Prepare the thread, which changes of the logs in `files` wake where they can be watched. `floor_ms`: least
        time between the beginnings of two turns.
        """
        self.failure: BaseException | None = None
        self.floor_ms = floor_ms
        self._turn = turn
        self._clock = clock
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=lambda: self._context.run(self._run), name="follow", daemon=True)
        self._context = Context()
        self._watch = log_watch(files, self.wake)

    @property
    def is_watched(self) -> bool:
        """Whether every change of the logs wakes the thread."""
        return self._watch is not None and self._watch.is_on

    def start(self) -> None:
        if self._watch is not None:
            self._watch.start()
        self._context = copy_context()  # the names in records
        self._thread.start()

    def wake(self) -> None:
        """Make the next turn come now. Called from any thread."""
        self._woken.set()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread after the turn in flight."""
        self._stopping.set()
        self.wake()
        self._thread.join(timeout_s)
        if self._watch is not None:
            self._watch.stop(timeout_s=timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                began_ms = self._clock.monotonic_ms()
                self._woken.clear()
                if self._watch is not None:
                    self._watch.renew()
                if self._woken.wait(
                    self._turn() / 1000
                ):  # Woken early, it still polls no more often than the floor allows.
                    self._stopping.wait(max(0.0, began_ms + self.floor_ms - self._clock.monotonic_ms()) / 1000)
        except BaseException as error:
            self.failure = error
            log.exception("following stopped", extra={"action": "follow-failed"})
