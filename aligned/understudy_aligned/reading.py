"""Planned ranges, read on executors and turned into rows for Spark: from the spool, or else from the input.

The rows depend only on the ranges and the options, so that a replayed batch is the same batch. Poison records are
written aside: one JSON lines file for each range that has any. Keys and values are in base64, because they may hold any
bytes.

Compaction may remove records after a batch was planned and before an executor reads it. Executors count these records,
and the planner has the metrics. If both run on one machine (if there is a spool), an executor leaves a note in a folder
of the planner. Otherwise only the log of the executor reports them. An offset without a record proves nothing: it may
belong to a transaction's marker or aborted record, which never was a row. So the numbers of records are compared.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import logging
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import orjson
import pyarrow as pa

from understudy_aligned.inputs.protocol import InputConfig, InputError, Range, RangeReader
from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition
from understudy_aligned.open_inputs import open_reader
from understudy_aligned.options import AlignedOptions
from understudy_aligned.rows import RangeRows, RowOptions, Slice, joined_rows
from understudy_aligned.spool import SpoolFile, SpoolPlace, read_spool
from understudy_shared.base.errors import UnderstudyError

log = logging.getLogger(__name__)

_SUFFIX = ".compacted"


@dataclass(slots=True)
class RangeRead:
    """The outcome of reading a range from its input."""

    records: int = 0
    has_losses: bool = False
    """Whether records of the range are lost (`fail_on_data_loss` off). How many there were is unknown."""


def count_compacted(found: RangeRead, planned: int | None) -> int:
    """Count the records that compaction removed from a range since it was planned: 0 if that is not certain."""
    if planned is None or found.has_losses:
        return 0
    return max(0, planned - found.records)


def report_compacted(span: Range, found: RangeRead, *, planned: int | None, batch: int, notes: str | None) -> None:
    """Log the compacted records of a range that was read, if there are any. Leave a note in the folder `notes`."""
    count = count_compacted(found, planned)
    if not count:
        return
    log.warning(
        "%s: %d of the %d records that batch %d had behind offset %s up to %s are gone: compaction (in Redis XDEL) "
        "removed them",
        *(span.partition, count, planned, batch, span.start.offset or "(the beginning)", span.end.offset),
        extra={"action": "compacted", **span.partition._asdict(), "records": count},
    )
    if notes is not None:
        # The planner may have ended and removed the folder. Then it does not count these records any more.
        with suppress(OSError):
            _write_note(Path(notes), span, count, batch)


class CompactedNotes:
    """The planner's side of the notes on compacted records. Not thread-safe."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """Prepare without I/O. `folder` makes the folder of the notes, or raises OSError."""
        self._make_folder = folder
        self._folder: Path | None = None
        self._batch = 0
        self._earlier = 0
        """Compacted records of earlier batches."""
        self._current = 0

    def begin(self, batch: int) -> str | None:
        """Return the folder for notes on a batch that executors read from the inputs. None if there is no folder.

        Count and remove the notes on earlier batches: Spark runs one batch at a time.
        """
        if batch != self._batch:
            self._earlier = self.total()
            self._batch, self._current = batch, 0
            for note in self._notes_of(None):
                note.unlink(missing_ok=True)
        try:
            self._folder = self._make_folder()
        except OSError as refusal:
            log.info("compacted records are not counted: %s", refusal, extra={"action": "compacted"})
            return None
        return str(self._folder)

    def total(self) -> int:
        """Return the number of compacted records since the start. It never decreases."""
        self._current = max(self._current, sum(_read_note(note) for note in self._notes_of(self._batch)))
        return self._earlier + self._current

    def _notes_of(self, batch: int | None) -> list[Path]:
        pattern = f"{'*' if batch is None else batch}-*{_SUFFIX}"
        return [] if self._folder is None else list(self._folder.glob(pattern))


def _write_note(folder: Path, span: Range, count: int, batch: int) -> None:
    """Write the note on a range. A task that runs again replaces it."""
    name = hashlib.sha256(repr(span).encode(errors="surrogatepass")).hexdigest()
    draft = folder / f"{batch}-{name}.draft"
    draft.write_text(str(count), encoding="ascii")
    draft.replace(draft.with_suffix(_SUFFIX))


def _read_note(note: Path) -> int:
    try:
        return int(note.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


_NAME_CHARS = 100
"""Longest topic in a file name. A longer one is cut, and a digest keeps it unique."""


class DeadLetterError(UnderstudyError):
    """Poison records cannot be written. The batch fails: it must not continue without them."""


def write_dead_letters(folder: Path, span: Range, poison: pa.RecordBatch, topic_id: str = "") -> Path:
    """Write the poison records (`ROW_SCHEMA`) of a range, whole or not at all. Raises DeadLetterError.

    A replayed range replaces its own file. Ranges of a partition do not overlap, so no record is written twice: those
    of a topic that was created again have another `topic_id`, if it is known. The folder must exist (`load()` makes
    it): an executor on another machine must not make one of its own.
    """
    of_topic = f"{_safe(span.partition.topic)}~{topic_id}" if topic_id else _safe(span.partition.topic)
    path = folder / f"{of_topic}-{span.partition.partition}-{span.start.ordinal:020d}.jsonl"
    lines = b"".join(orjson.dumps(_letter(span, row)) + b"\n" for row in poison.to_pylist())
    try:
        descriptor, draft = tempfile.mkstemp(prefix=".", suffix=".draft", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as refusal:
        raise DeadLetterError(
            f"{poison.num_rows} records without a usable timestamp cannot be written aside: {refusal.strerror}",
            where=str(folder),
            fix="Make undecodable_path a folder that all machines share and every executor can write to; Spark then "
            "retries the batch",
        ) from refusal
    return path


def _letter(span: Range, row: dict[str, object]) -> dict[str, object]:
    headers = row["headers"]
    return {
        "topic": span.partition.topic,
        "partition": span.partition.partition,
        "offset": row["offset"],
        "key": _base64(row["key"]),
        "value": _base64(row["value"]),
        "headers": None
        if not isinstance(headers, list)
        else [{"key": header["key"], "value": _base64(header["value"])} for header in headers],
    }


def _base64(value: object) -> str | None:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else None


def _safe(topic: str) -> str:
    quoted = quote(topic, safe="")
    if len(quoted) <= _NAME_CHARS:
        return quoted
    return f"{quoted[:_NAME_CHARS]}~{hashlib.sha256(topic.encode()).hexdigest()[:16]}"


TASK_BYTES = 1 << 20
"""Bytes that justify another Spark task: a task costs 10 to 20 ms, in which one task reads at least this much."""

_ASSUMED_RECORD_BYTES = 256
"""Assumed record size of a batch that is replayed after a restart: its sizes are no longer known."""

_RETRY_PAUSES_S = (0.1, 0.4, 1.6)
"""Pauses before an input is read again after an InputError; the last one is repeated."""

_MAX_READERS = 16
"""Most readers that a worker process keeps open; it may serve several queries."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range with its input, its topic's rank, and its place in the spool file, if there is one."""

    span: Range
    config: InputConfig
    rank: int
    spooled: tuple[str, Sequence[SpoolPlace]] | None = None
    bytes: int = 0
    records: int | None = None
    """Its records when the batch was planned. None: unknown."""
    topic_id: str = ""
    """The id of its topic, if the topic has one."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The ranges that one Spark task reads."""

    ranges: tuple[PlannedRange, ...]
    options: RowOptions = field(default_factory=RowOptions)
    poll_timeout_ms: int = 0
    """Time for which an input that cannot be read is retried, counted from the last record."""
    batch: int = 0
    """The number of the batch: the first field of `merge_order`."""
    stream_time_ms: int = NO_TIME_MS
    """The column `stream_time` of the batch."""
    notes: str | None = None
    """The folder of notes on compacted records, which the planner counts."""


def planned_ranges(
    options: AlignedOptions,
    spans: Sequence[Range],
    *,
    topics: Sequence[str] = (),
    sizes: Sequence[int] | None = None,
    spool: SpoolFile | None = None,
    records_of: Mapping[TopicPartition, int] | None = None,
    topic_ids: Mapping[str, str] = {},
) -> list[PlannedRange]:
    """Describe the ranges of a batch for executors. `sizes` and the parts of `spool` are in the order of `spans`.

    `topics` are the topics that are read, in the order that breaks ties, unless that is the order of the option.
    `records_of` are the numbers of records in the batch when it was planned, for partitions of which they are known.
    """
    records_of = records_of or {}
    ranks = {topic: rank for rank, topic in enumerate(topics or options.topics)}
    planned = []
    for index, span in enumerate(spans):
        topic = span.partition.topic
        # A range that was planned across a loss may end before its start.
        records = max(0, span.end.ordinal - span.start.ordinal)
        size = records * _ASSUMED_RECORD_BYTES if sizes is None else sizes[index]
        place = None if spool is None else (spool.path, spool.parts[index])
        config = next(config for config in options.inputs if topic in config.topics)
        count, topic_id = records_of.get(span.partition), topic_ids.get(topic, "")
        planned.append(PlannedRange(span, config, ranks[topic], place, size, count, topic_id))
    return planned


def pack_tasks(
    planned: Sequence[PlannedRange],
    options: AlignedOptions,
    *,
    batch: int,
    stream_time_ms: int = NO_TIME_MS,
    notes: str | None = None,
) -> list[ReadTask]:
    """Distribute a batch's ranges over at most `reader_tasks` Spark tasks of similar size; fewer for a small batch.

    The partitions of one merge task stay in one Spark task, unless that would leave Spark tasks empty.
    """
    if not planned:
        return []
    count = min(options.reader_tasks, len(planned), 1 + sum(each.bytes for each in planned) // TASK_BYTES)
    tasks: dict[int, list[PlannedRange]] = {}
    for each in planned:
        tasks.setdefault(each.span.partition.partition if options.merge == "task" else 0, []).append(each)
    together = list(tasks.values()) if len(tasks) >= count else [[each] for each in planned]
    bins = _in_order(together, count) if _are_small(together, count) else _by_size(together, count)
    rows = RowOptions.of(options)
    timeout_ms = options.poll_timeout_ms
    return [ReadTask(tuple(held), rows, timeout_ms, batch, stream_time_ms, notes) for held in bins if held]


def _are_small(together: Sequence[Sequence[PlannedRange]], count: int) -> bool:
    sizes = [_bytes(each) for each in together]
    return 8 * count * max(sizes) < sum(sizes)


def _in_order(together: Sequence[Sequence[PlannedRange]], count: int) -> Sequence[Sequence[PlannedRange]]:
    """Cut the list wherever a bin is full. So ranges that are neighbours in a spool are read as one piece."""
    bins: list[list[PlannedRange]] = [[] for _ in range(count)]
    total, before = sum(map(_bytes, together)), 0
    for ranges in together:
        size = _bytes(ranges)
        bins[(2 * before + size) * count // (2 * total)] += ranges
        before += size
    return bins


def _by_size(together: Sequence[Sequence[PlannedRange]], count: int) -> Sequence[Sequence[PlannedRange]]:
    """Put each into the bin that holds the fewest bytes, the largest ones first."""
    bins: list[tuple[int, int, list[PlannedRange]]] = [(0, number, []) for number in range(count)]
    for ranges in sorted(together, key=_bytes, reverse=True):
        size, number, held = heapq.heappop(bins)
        heapq.heappush(bins, (size + _bytes(ranges), number, [*held, *ranges]))
    return [held for _, _, held in sorted(bins, key=lambda each: each[1])]


def _bytes(ranges: Sequence[PlannedRange]) -> int:
    return sum(each.bytes for each in ranges)


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the task's ranges in log order, and then write its poison records aside.

    Raises InputError, DataLostError, UndecodableError, DeadLetterError.
    """
    spooled = _spooled(task.ranges)
    ranges = [(planned, RangeRows(planned.span, task.options, rank=planned.rank)) for planned in task.ranges]
    pieces = (
        (rows, records) for planned, rows in ranges for records in _records(planned, task, spooled.get(planned.span))
    )
    yield from joined_rows(pieces, task.options, batch=task.batch, stream_time_ms=task.stream_time_ms)
    if task.options.undecodable_path is not None:
        for planned, rows in ranges:
            if (letters := rows.dead_letters) is not None:
                write_dead_letters(task.options.undecodable_path, planned.span, letters, planned.topic_id)


def _spooled(ranges: Sequence[PlannedRange]) -> Mapping[Range, Sequence[Slice]]:
    """Map the spooled ranges, opening each file once: a large batch has hundreds of ranges."""
    parts: dict[str, list[tuple[Range, Sequence[SpoolPlace]]]] = {}
    for each in ranges:
        if each.spooled is not None:
            path, places = each.spooled
            parts.setdefault(path, []).append((each.span, places))
    found: dict[Range, Sequence[Slice]] = {}
    for path, of_file in parts.items():
        # A mapped file stays readable when it is removed, so this cannot fail later.
        with suppress(OSError, pa.ArrowException):
            records = read_spool(path, [places for _, places in of_file])
            found.update(zip([span for span, _ in of_file], records, strict=True))
    return found


def _records(planned: PlannedRange, task: ReadTask, spooled: Sequence[Slice] | None) -> Iterator[Slice]:
    if spooled is not None:
        yield from spooled
        return
    found = RangeRead()
    yield from map(Slice.whole, _read_with_retries(planned, task.poll_timeout_ms, found))
    report_compacted(planned.span, found, planned=planned.records, batch=task.batch, notes=task.notes)


def _read_with_retries(planned: PlannedRange, timeout_ms: int, found: RangeRead) -> Iterator[pa.RecordBatch]:
    """Read a range. After an InputError, resume after the last record, until no record has come for `timeout_ms`.

    In local mode one failed task ends the query. The input itself gives up after one request.
    """
    left, end_s, failures = planned.span, time.monotonic() + timeout_ms / 1000, 0
    while True:
        try:
            for records in _READERS.read(planned.config, left, found):
                found.records += records.num_rows
                yield records
                left = left._replace(start=_behind(records))
                end_s, failures = time.monotonic() + timeout_ms / 1000, 0
        except InputError as error:
            pause_s = _RETRY_PAUSES_S[min(failures, len(_RETRY_PAUSES_S) - 1)]
            if time.monotonic() + pause_s >= end_s:
                raise InputError(error.what, where=error.where, fix=_FIX.format(timeout_ms)) from error
            failures += 1
        else:
            return
        time.sleep(pause_s)


_FIX = (
    "Check that the server runs and can be reached from the executors, which waited for {} ms (poll_timeout_ms). Start "
    "the query again: it continues with this batch"
)


def _behind(records: pa.RecordBatch) -> Cursor:
    """Return the position after the last record, without a partition time: only the start of the range needs one."""
    return Cursor(records.column("offset")[-1].as_py(), records.column("ordinal")[-1].as_py() + 1)


class _Readers:
    """Open readers of this worker process, least recently used first."""

    def __init__(self, most: int = _MAX_READERS) -> None:
        self._most = most
        self._open: OrderedDict[InputConfig, RangeReader] = OrderedDict()

    def read(self, config: InputConfig, span: Range, found: RangeRead) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, and note in `found` whether some are lost. A reader that fails is closed."""
        reader = self._open.pop(config, None) or open_reader(config)
        losses = reader.losses
        try:
            yield from reader.read(span)
        except BaseException:
            reader.close()
            raise
        finally:
            found.has_losses |= reader.losses > losses
        self._open[config] = reader
        while len(self._open) > self._most:
            self._open.popitem(last=False)[1].close()


_READERS = _Readers()
"""Readers are kept for later batches, as worker processes outlive a batch."""
