"""One run of a query, in its planner process: plans the batch after an offset, and maps two offsets to reader tasks.

`source` adapts it to Spark's API. Offsets are JSON here, as Spark passes them.

One query per checkpoint: the planner's process holds a lock file in the checkpoint folder, whose dot makes Spark ignore
it. The kernel releases the lock when the process ends, however it ends. Each source of a query has a lock of its own.
The jar gets the location of the checkpoint from Spark. A Python source does not: it needs the option `checkpoint`.

The next batch is written to the spool while Spark runs the current one. This does not affect any plan: the planner
plans every batch when Spark asks for it, and uses a file that was written ahead only if it holds exactly the ranges of
that plan. So order, offsets and replay are the same with and without writing ahead.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from understudy_aligned.batch_plan import UNBOUNDED
from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.offset import (
    SourceOffset,
    check_fingerprint,
    check_replay,
    check_still_read,
    fingerprint,
    topics_at,
    with_topics,
)
from understudy_aligned.open_inputs import OpenInputs, lost_topics, made_anew
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import WAIT_MS, PlannedBatch, Planner
from understudy_aligned.reading import (
    CompactedNotes,
    PlannedRange,
    ReadTask,
    pack_tasks,
    planned_ranges,
    write_dead_letters,
)
from understudy_aligned.spool import RecordsForm, RowsForm, Spool, SpoolFile
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import UnderstudyError


def remove_spool_on_sigterm(remove_spool: Callable[[], None]) -> None:
    """Call `remove_spool` on SIGTERM, and then exit. Spark ends planners so (`PythonWorkerFactory.stopWorker`).

    Exit with `os._exit`: nothing waits for this process, so Python's orderly exit is skipped. This installs the
    handler only in the main thread, and only if no other handler is set: other users of this source keep theirs.
    """

    def end(number: int, _: object) -> None:
        try:
            remove_spool()
        finally:
            os._exit(128 + number)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


Json = dict[str, object]

PATIENCE_MS = 5_000
"""Longest time that Spark waits for a batch while a server that answers has records that are not fetched yet."""


LOCK_NAME = ".understudy.lock"

WAIT_S = 5.0
"""Time to wait for the lock. Spark does not wait until the planner of a stopped query has ended, so it may still hold
the lock when the query restarts at once."""

_AGAIN_S = 0.05


log = logging.getLogger(__name__)

_LOOK_MS = 1_000
"""Longest time between two checks by the thread whether it can write. Any change wakes it at once."""

_ANSWER_FIRST_S = 0.005
"""Pause before the thread's first poll: the answer to Spark goes first. The interpreter changes threads each 5 ms."""

_STOP_S = 3.0
"""Time for which `stop` waits for a file that is being written."""


@dataclass(frozen=True, slots=True)
class _FileAhead:
    """A file that was written ahead: its ranges, and the offset at which its batch ends."""

    ranges: Sequence[Range]
    end: SourceOffset
    file: SpoolFile

    def holds(self, batch: PlannedBatch, form: RecordsForm) -> bool:
        """Whether it holds exactly this batch. A topic that was created again has other records at the same offsets."""
        return (
            self.ranges == [span for span, _ in batch.ranges]
            and self.end.topic_ids == batch.end.topic_ids
            and form.depends_on(self.end) == form.depends_on(batch.end)
        )


class SpoolAhead:
    """The writer of one planner's batches: ahead in its own thread if possible, else when asked. Thread-safe."""

    def __init__(
        self, spool: Spool, planner: Planner, *, is_ahead: bool = True, form: RecordsForm | None = None
    ) -> None:
        """Prepare without starting. With `is_ahead` off each batch is written when Spark asks for it."""
        self._spool = spool
        self._planner = planner
        self._form = form or RecordsForm()
        self._is_ahead = is_ahead
        self.writing = threading.Lock()
        """Held while a file is written, and while Spark asks for a batch. Take it before the planner's lock."""
        self._wanted = threading.Event()
        """The batch after the current one is not written yet."""
        self._stopping = threading.Event()
        self._current: SpoolFile | None = None
        """The file of the batch that Spark runs."""
        self._next: _FileAhead | None = None
        self._thread: threading.Thread | None = None

    def file_of(self, batch: PlannedBatch) -> SpoolFile | None:
        """Return the file of the batch just planned; None if it cannot be written. Hold `writing` meanwhile."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead.holds(batch, self._form):
            self._current = ahead.file
            self._planner.counts.spooled_ahead += 1
        else:
            parts, letters = self._form.form(batch.ranges, batch.end)
            written = self._spool.write(parts)
            self._current = None if written is None else replace(written, letters=letters)
        if self._is_ahead:
            self._begin()
        return self._current

    def reuse(self, path: str) -> None:
        """Allow a later batch to overwrite a file that has no readers any more."""
        with self.writing:
            if self._current is not None and self._current.path == path:
                self._current = None
                self._spool.reuse(path)

    def write_next(self) -> None:
        """Write the batch after the current one, if it is wanted and settled."""
        with self.writing:
            settled = self._planner.settled() if self._wanted.is_set() and not self._stopping.is_set() else None
            if settled is None:
                return
            self._wanted.clear()
            try:
                parts, letters = self._form.form(settled.ranges, settled.end)
                file = replace(self._spool.write_beside(self._current, parts), letters=letters)
            except OSError as refusal:
                # There may be room for one file but not for two. The batch is written when Spark asks for it.
                log.info("the next batch is not written ahead: %s", refusal, extra={"action": "spool-ahead"})
                self._is_ahead = False
                return
            self._next = _FileAhead([span for span, _ in settled.ranges], settled.end, file)

    def stop(self) -> None:
        """End the thread. The spool stays. May be called again."""
        self._stopping.set()
        self._wanted.set()
        self._planner.wake()
        if self._thread is not None:
            self._thread.join(_STOP_S)

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


class CheckpointInUseError(UnderstudyError):
    """Another query runs on this checkpoint."""


class CheckpointLock:
    """The lock, held from construction to `release`, or to the end of the process."""

    def __init__(self, checkpoint: Path, *, source: str = "0", wait_s: float = WAIT_S) -> None:
        """Create the folder if needed and take the lock of this source, which Spark numbers within a query.

        Raises CheckpointInUseError after `wait_s`, and another UnderstudyError if the folder cannot be locked.
        """
        path = checkpoint / (LOCK_NAME if source == "0" else f"{LOCK_NAME}-{source}")
        try:
            checkpoint.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as refusal:
            raise _not_lockable(path, refusal) from refusal
        try:
            self._take(path, time.monotonic() + wait_s)
        except OSError as refusal:
            os.close(self._file)
            raise _not_lockable(path, refusal) from refusal
        except BaseException:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def _take(self, path: Path, end_s: float) -> None:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() >= end_s:
                holder = os.pread(self._file, 20, 0).decode(errors="replace")
                raise CheckpointInUseError(
                    f"another query reads this checkpoint; its planner is process {holder or '?'}",
                    where=str(path.parent),
                    fix="Stop that query first, or give this one a checkpointLocation of its own",
                )
            time.sleep(_AGAIN_S)

    def release(self) -> None:
        """Release the lock. Call it once."""
        os.close(self._file)


def _not_lockable(path: Path, refusal: OSError) -> UnderstudyError:
    return UnderstudyError(
        f"the checkpoint cannot be locked: {refusal.strerror}",
        where=str(path),
        fix="Make the folder writable, or leave out the option checkpoint",
    )


@dataclass(frozen=True, slots=True)
class _LastBatch:
    """The batch that was planned last, and its spool file."""

    start: Json
    end: Json
    batch: PlannedBatch
    file: SpoolFile | None


class AlignedStream:
    """Opens nothing before its first use. From its first offset on it holds the checkpoint's lock until `stop`."""

    def __init__(
        self,
        options: AlignedOptions,
        inputs: OpenInputs | None = None,
        *,
        spools_ahead: bool = True,
        spools_rows: bool = False,
        folder: Path | None = None,
    ) -> None:
        """Prepare. Some `inputs` may be open already. With `spools_ahead` off, each batch is spooled when Spark asks
        for it: benchmarks compare both. With `spools_rows`, the spool holds rows instead of records, for Spark itself
        to read. `folder` is this source's folder in Spark's checkpoint, `<checkpoint>/sources/<number>`, if known.
        """
        self._options = options
        self._folder = folder
        self._inputs = inputs
        self._spools_ahead = spools_ahead
        self._form = RowsForm(options) if spools_rows else RecordsForm()
        self._fingerprint = fingerprint(options)
        self._lock: CheckpointLock | None = None
        self._planner: Planner | None = None
        self._spool = None if options.spool is None else Spool(options.spool, self._form.schema, joins=self._form.joins)
        self._notes = None if self._spool is None else CompactedNotes(self._spool.folder)
        self._ahead: SpoolAhead | None = None
        self._stop_serving: Callable[[], None] | None = None
        self._metrics_port: int | None = None
        self._initial: Json | None = None
        self._last: _LastBatch | None = None

    def initial_offset(self) -> Json:
        """Return where a new checkpoint begins. Repeated calls give the same offset."""
        if self._initial is None:
            self._initial = self._get_planner().initial(timeout_ms=self._options.request_timeout_ms).to_json()
        return self._initial

    def finish_at_current_ends(self) -> None:
        """Read up to the current ends only (the trigger AvailableNow).

        It takes no lock: Spark calls it while it builds a query, and stops no source if that fails.
        """
        self._open_planner().finish_at_current_ends(timeout_ms=self._options.request_timeout_ms)

    def latest_offset_of_all(self, start: Json) -> Json:
        """Plan one batch up to the current ends, whatever its size (the trigger Once). Raises like `latest_offset`."""
        parsed, planner = self._parse_offset(start), self._get_planner()
        end = planner.plan_to_current_ends(parsed, timeout_ms=self._options.request_timeout_ms)
        return start if end is None else end.to_json()

    def latest_offset(self, start: Json) -> Json:
        """Plan the batch after `start`, put it into the spool, and return its end. Return `start` if there is no batch.

        Raises OffsetError for a checkpoint of another source or with other options, and errors that stopped an input.
        """
        parsed, planner = self._parse_offset(start), self._get_planner()
        with self._hold_writing(), planner.hold_prefetch():
            batch = planner.plan_patiently(parsed, wait_ms=WAIT_MS, limit_ms=PATIENCE_MS)
            if batch is None:
                planner.counts.empty_plans += 1
                return start
            file = None if self._ahead is None else self._ahead.file_of(batch)
        self._last = _LastBatch(start, batch.end.to_json(), batch, file)
        return self._last.end

    def reuse_spool_file(self, path: str) -> None:
        """Allow a later batch to overwrite this file: no reader has it open, and none of them can open it again."""
        if self._ahead is not None:
            self._ahead.reuse(path)
            last = self._last
            if last is not None and last.file is not None and last.file.path == path:
                self._last = replace(last, file=None)

    def tasks(self, start: Json, end: Json) -> list[ReadTask]:
        """Return what Spark tasks read between two offsets: the batch just planned, or one logged before a restart."""
        self._lock_checkpoint()
        if self._last is not None and (self._last.start, self._last.end) == (start, end):
            ranges = self._last.batch.ranges
            spans = [span for span, _ in ranges]
            sizes = self._last.batch.sizes
            end_at = self._last.batch.end
            topics = topics_at(self._options, end_at)
            self._write_dead_letters(self._last.file, end_at.topic_ids)
            planned = planned_ranges(
                self._options,
                spans,
                topics=topics,
                sizes=sizes,
                spool=self._last.file,
                records_of=end_at.records_of,
                topic_ids=end_at.topic_ids,
            )
            return self._pack(planned, end_at)
        before, after = self._parse_offset(start), self._parse_offset(end)
        if not after.batches:
            return []  # Spark runs a first batch without records
        if after.begins is not None:
            before = replace(before, cursors=after.begins)
        check_replay(before, after, self._fingerprint)
        spans = _between(before, after)
        lost = lost_topics(self._options, after.topic_ids, {span.partition.topic for span in spans})
        spans = [span for span in spans if span.partition.topic not in lost]
        # The counts are those of one batch. They do not fit if `start` is more than one batch before `end`.
        records_of = after.records_of if before.batches + 1 == after.batches else {}
        topics = topics_at(self._options, after)
        planned = planned_ranges(self._options, spans, topics=topics, records_of=records_of, topic_ids=after.topic_ids)
        return self._pack(planned, after)

    def metrics(self) -> Json | None:
        """Return the planner's metrics for Spark's progress. None before the planner has started."""
        if self._planner is None:
            return None
        self._planner.counts.compacted = None if self._notes is None else self._notes.total()
        metrics = self._planner.snapshot().as_json()
        return metrics if self._metrics_port is None else {**metrics, "metrics-port": self._metrics_port}

    def stop(self) -> None:
        """Close everything. May be called again."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None
        if self._planner is not None:
            self._planner.stop()
            self._planner = None
        if self._inputs is not None:
            self._inputs.close()
        if self._stop_serving is not None:
            self._stop_serving()
            self._stop_serving = None
        if self._spool is not None:
            self._spool.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def remove_spool(self) -> None:
        """Clean up before the process exits at once: only the spool would outlive it. Takes no lock."""
        if self._spool is not None:
            self._spool.close()

    def _pack(self, planned: Sequence[PlannedRange], end: SourceOffset) -> list[ReadTask]:
        notes = None
        if self._notes is not None and any(each.spooled is None for each in planned):
            with self._hold_writing():
                notes = self._notes.begin(end.batches)
        return pack_tasks(planned, self._options, batch=end.batches, stream_time_ms=end.stream_time_ms, notes=notes)

    def _write_dead_letters(self, file: SpoolFile | None, topic_ids: Mapping[str, str]) -> None:
        """Write the poison records aside that a file of rows leaves out. With a file of records, executors do that."""
        folder = self._options.undecodable_path
        if file is not None and folder is not None:
            for span, poison in file.letters:
                write_dead_letters(folder, span, poison, topic_ids.get(span.partition.topic, ""))

    def _hold_writing(self) -> AbstractContextManager[object]:
        return nullcontext() if self._ahead is None else self._ahead.writing

    def _parse_offset(self, offset: Json) -> SourceOffset:
        parsed = SourceOffset.from_json(offset)
        check_still_read(self._options, parsed)
        now = with_topics(self._fingerprint, self._options, topics_at(self._options, parsed))
        check_fingerprint(parsed.fingerprint, now, parsed.read_topics)
        return parsed

    def _lock_checkpoint(self) -> None:
        if self._lock is not None:
            return
        source = "0" if self._folder is None else self._folder.name
        if self._options.checkpoint is not None:
            self._lock = CheckpointLock(self._options.checkpoint, source=source)
        elif self._folder is not None:
            try:
                self._lock = CheckpointLock(self._folder.parent.parent, source=source)
            except CheckpointInUseError:
                raise
            except UnderstudyError as refusal:
                log.warning("a second query on this checkpoint is not noticed: %s", refusal, extra={"action": "lock"})
                self._folder = None

    def _get_planner(self) -> Planner:
        self._lock_checkpoint()
        return self._open_planner()

    def _open_planner(self) -> Planner:
        if self._planner is not None:
            return self._planner
        planner = Planner(self._options, SystemClock(), self._inputs)
        if self._options.metrics_port is not None:
            # Imported here because every worker loads this module, and few planners serve metrics.
            from understudy_aligned.metrics_server import serve_metrics  # noqa: PLC0415

            self._metrics_port, self._stop_serving = serve_metrics(planner.snapshot, self._options.metrics_port)
        if self._spool is not None:
            # Without a bound no batch is settled.
            is_ahead = self._spools_ahead and self._options.max_poll_records != UNBOUNDED
            self._ahead = SpoolAhead(self._spool, planner, is_ahead=is_ahead, form=self._form)
        self._planner = planner
        return planner


def _between(start: SourceOffset, end: SourceOffset) -> list[Range]:
    anew = made_anew(start.topic_ids, end.topic_ids)
    spans = [Range(place, _start_of(place, start, anew), cursor) for place, cursor in end.cursors.items()]
    return sorted(span for span in spans if span.start != span.end)


def _start_of(place: TopicPartition, start: SourceOffset, anew: Set[str]) -> Cursor:
    cursor = start.cursors.get(place, Cursor())
    return Cursor(time_ms=cursor.time_ms) if place.topic in anew else cursor
