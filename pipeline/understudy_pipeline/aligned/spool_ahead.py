"""Writes the next batch to the spool while Spark runs the current one.

It decides nothing. The planner plans every batch when Spark asks for it, and a file that was written ahead is used only
if it holds exactly the ranges of that plan. So order, offsets and replay are the same with it and without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from understudy_pipeline.aligned.offset import SourceOffset
from understudy_pipeline.aligned.planner import Planner
from understudy_pipeline.aligned.spool import Spool, SpoolFile
from understudy_pipeline.aligned.spool_form import RecordsForm, SpoolForm
from understudy_pipeline.aligned.taking import PlannedBatch, SettledBatch
from understudy_pipeline.inputs.protocol import Range

log = logging.getLogger(__name__)

_LOOK_MS = 1_000
"""Longest wait before the thread looks again. News wakes it up at once."""

_ANSWER_FIRST_S = 0.005
"""Pause before the thread looks at all: the answer to Spark goes first. The interpreter changes threads each 5 ms."""

_STOP_S = 3.0
"""Time for which `stop` waits for a file that is being written."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A file, and what is in it."""

    ranges: Sequence[Range]
    end: SourceOffset
    file: SpoolFile

    def holds(self, batch: PlannedBatch, form: SpoolForm) -> bool:
        """Whether it holds exactly this batch. A topic that was made anew has the same offsets and other records."""
        return (
            self.ranges == [span for span, _ in batch.ranges]
            and self.end.topic_ids == batch.end.topic_ids
            and form.depends_on(self.end) == form.depends_on(batch.end)
        )


class SpoolAhead:
    """The writer of all batches of one planner, in its own thread where that is possible. Thread-safe."""

    def __init__(self, spool: Spool, planner: Planner, *, is_ahead: bool = True, form: SpoolForm | None = None) -> None:
        """Prepare without starting. With `is_ahead` off each batch is written when Spark asks for it."""
        self._spool = spool
        self._planner = planner
        self._form = form or RecordsForm()
        self._is_ahead = is_ahead
        self._writing = threading.Lock()
        """Held while a file is written, and while Spark asks for a batch. Take it before the planner's lock."""
        self._wanted = threading.Event()
        """The batch after the current one is not written yet."""
        self._stopping = threading.Event()
        self._current: SpoolFile | None = None
        """The file of the batch that Spark runs."""
        self._next: _Ahead | None = None
        self._thread: threading.Thread | None = None

    def hold(self) -> AbstractContextManager[object]:
        """Return a block in which nothing is written ahead."""
        return self._writing

    def file_of(self, batch: PlannedBatch) -> SpoolFile | None:
        """Return the file of a batch that was just planned; None if it cannot be written. Call it inside of `hold`."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead.holds(batch, self._form):
            self._current = ahead.file
            self._planner.counts.spooled_ahead += 1
        else:
            formed = self._form.form(batch.ranges, batch.end)
            written = self._spool.write(formed.parts)
            self._current = None if written is None else replace(written, letters=formed.letters)
        if self._is_ahead:
            self._begin()
        return self._current

    def reuse(self, path: str) -> None:
        """Let a later batch be written over a file that is not read any more."""
        with self._writing:
            if self._current is not None and self._current.path == path:
                self._current = None
                self._spool.reuse(path)

    def write_next(self) -> None:
        """Write the batch after the current one, if it is wanted and settled."""
        with self._writing:
            settled = self._planner.settled() if self._wanted.is_set() and not self._stopping.is_set() else None
            if settled is None:
                return
            self._wanted.clear()
            try:
                file = self._write(settled)
            except OSError as refusal:
                # There may be room for one file and not for two. The batch is written when Spark asks for it.
                log.info("the next batch is not written ahead: %s", refusal, extra={"action": "spool-ahead"})
                self._is_ahead = False
                return
            self._next = _Ahead([span for span, _ in settled.ranges], settled.end, file)

    def stop(self) -> None:
        """End the thread. The spool stays. May be called again."""
        self._stopping.set()
        self._wanted.set()
        self._planner.wake()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _write(self, settled: SettledBatch) -> SpoolFile:
        formed = self._form.form(settled.ranges, settled.end)
        return replace(self._spool.write_beside(self._current, formed.parts), letters=formed.letters)

    def _begin(self) -> None:
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="understudy-spool-ahead", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wanted.wait()
                self._stopping.wait(_ANSWER_FIRST_S)
                if self._planner.wait_until_settled(limit_ms=_LOOK_MS, stopping=self._stopping):
                    self.write_next()
        except Exception:  # any error: writing ahead saves time and is never needed
            log.exception("nothing is written ahead any more", extra={"action": "spool-ahead"})
            self._is_ahead = False
