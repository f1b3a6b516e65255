"""The executors' side: planned ranges become rows for Spark, from the spool or, without it, from the input again.

What comes out depends on the ranges and the options alone, so that a batch that is read again is the same batch.
"""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from understudy_pipeline.aligned.dead_letters import write_dead_letters
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.poison import UndecodableError
from understudy_pipeline.aligned.rows import output_rows, with_effective_times
from understudy_pipeline.aligned.spool import SpoolFile, read_spool
from understudy_pipeline.inputs.opening import open_reader
from understudy_pipeline.inputs.protocol import InputConfig, InputError, Range, RangeReader

ROWS = 10_000
"""Of a batch of rows on its way to Spark: fewer cost more calls, many more no longer gain."""

TASK_BYTES = 1 << 20
"""A second Spark task costs some 10 to 20 ms, in which one task reads this much and more."""

COALESCE_BYTES = 1 << 20
"""Of small batches of rows that are copied into one."""

_ASSUMED_RECORD_BYTES = 256
"""Of a record whose size nobody knows: of a batch that is read again after a restart."""

_RETRY_PAUSES_S = (0.1, 0.4, 1.6)
"""Before an input that cannot be read is asked again: a failed task ends a query that runs in one process."""

_MAX_READERS = 16
"""Of a worker process, which may serve several queries."""


@dataclass(frozen=True, slots=True)
class RowOptions:
    """What of the options shapes rows, on every executor alike."""

    max_timestamp_jump_ms: int | None = None
    undecodable: Literal["fail", "skip", "aside"] = "fail"
    undecodable_path: Path | None = None
    include_headers: bool = False

    @classmethod
    def of(cls, options: AlignedOptions) -> RowOptions:
        return cls(
            options.max_timestamp_jump_ms, options.undecodable, options.undecodable_path, options.include_headers
        )


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range, whose input it is, its topic's rank, and where it lies in the spool."""

    span: Range
    config: InputConfig
    rank: int
    spooled: tuple[str, range] | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one Spark task reads."""

    ranges: tuple[PlannedRange, ...]
    options: RowOptions = field(default_factory=RowOptions)
    request_timeout_ms: int = 0
    """For how long a range is tried again whose input cannot be read."""


def planned_ranges(
    options: AlignedOptions,
    spans: Sequence[Range],
    *,
    sizes: Sequence[int] | None = None,
    spool: SpoolFile | None = None,
) -> list[PlannedRange]:
    """Everything about the ranges of a batch that an executor has to know; `sizes` and `spool` are in their order."""
    ranks = {topic: rank for rank, topic in enumerate(options.topics)}
    configs = {topic: config for config in options.inputs for topic in config.topics}
    planned = []
    for index, span in enumerate(spans):
        topic = span.partition.topic
        size = (span.end.ordinal - span.start.ordinal) * _ASSUMED_RECORD_BYTES if sizes is None else sizes[index]
        place = None if spool is None else (spool.path, spool.parts[index])
        planned.append(PlannedRange(span, configs[topic], ranks[topic], place, size))
    return planned


def pack_tasks(planned: Sequence[PlannedRange], options: AlignedOptions) -> list[ReadTask]:
    """At most `reader_tasks` tasks of about the same size, fewer when there is little to read.

    What is merged together is read together, unless that leaves tasks without work.
    """
    if not planned:
        return []
    count = min(options.reader_tasks, len(planned), 1 + sum(each.bytes for each in planned) // TASK_BYTES)
    tasks: dict[int, list[PlannedRange]] = {}
    for each in planned:
        tasks.setdefault(each.span.partition.partition if options.merge == "task" else 0, []).append(each)
    together = list(tasks.values()) if len(tasks) >= count else [[each] for each in planned]
    bins: list[tuple[int, int, list[PlannedRange]]] = [(0, number, []) for number in range(count)]
    for ranges in sorted(together, key=_bytes, reverse=True):
        size, number, held = heapq.heappop(bins)
        heapq.heappush(bins, (size + _bytes(ranges), number, held + ranges))
    rows = RowOptions.of(options)
    timeout_ms = options.request_timeout_ms
    return [ReadTask(tuple(held), rows, timeout_ms) for _, _, held in sorted(bins, key=lambda each: each[1]) if held]


def _bytes(ranges: Sequence[PlannedRange]) -> int:
    return sum(each.bytes for each in ranges)


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Rows of all the task's ranges, each in log order. Raises InputError, DataLostError, UndecodableError."""
    return _coalesce(
        rows for planned in task.ranges for rows in _read_range(planned, task.options, task.request_timeout_ms)
    )


def _coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: each costs Spark some 0.5 ms, whatever is in it."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + len(batch) > ROWS or size + batch.nbytes > COALESCE_BYTES):
            yield _concat(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
    if held:
        yield _concat(held)


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()  # more than one of 2 GiB and more
    return joined


def _read_range(planned: PlannedRange, options: RowOptions, timeout_ms: int) -> Iterator[pa.RecordBatch]:
    span = planned.span
    time_ms = span.start.time_ms
    aside = []
    for records in _records(planned, timeout_ms):
        rows, times_ms, poison, time_ms = with_effective_times(
            records, time_ms=time_ms, max_jump_ms=options.max_timestamp_jump_ms
        )
        if poison.num_rows:
            if options.undecodable == "fail":
                raise _undecodable_error(span, poison)
            aside.append(poison)
        if rows.num_rows:
            yield output_rows(
                rows, span.partition, rank=planned.rank, effective_ms=times_ms, include_headers=options.include_headers
            )
    if aside and options.undecodable_path is not None:
        write_dead_letters(options.undecodable_path, span, _concat(aside))


def _records(planned: PlannedRange, timeout_ms: int) -> Iterator[pa.RecordBatch]:
    found = None
    if planned.spooled is not None:
        # What is mapped stays, even when its file is removed: nothing can be missing after this.
        with suppress(OSError, pa.ArrowException):
            found = read_spool(*planned.spooled)
    for records in _read_with_retries(planned, timeout_ms) if found is None else found:
        yield from _split(records)


def _read_with_retries(planned: PlannedRange, timeout_ms: int) -> Iterator[pa.RecordBatch]:
    """Again after an InputError, while nothing of the range has come and the time is not over."""
    end_s = time.monotonic() + timeout_ms / 1000
    pauses = iter(_RETRY_PAUSES_S)
    while True:
        has_begun = False
        try:
            for records in _READERS.read(planned.config, planned.span):
                has_begun = True
                yield records
        except InputError:
            pause_s = next(pauses, None)
            if has_begun or pause_s is None or time.monotonic() + pause_s >= end_s:
                raise
        else:
            return
        time.sleep(pause_s)


def _split(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, records.num_rows, ROWS):
        yield records.slice(start, ROWS)


def _undecodable_error(span: Range, poison: pa.RecordBatch) -> UndecodableError:
    topic, partition = span.partition
    return UndecodableError(
        "the time of a record cannot be told",
        where=f"topic {topic}, partition {partition}, offset {poison.column('offset')[0].as_py()}",
        fix="Set undecodable to 'skip' or 'aside' and start the query again, or correct the option timestamp",
    )


class _Readers:
    """What this worker process has open, the longest unused first."""

    def __init__(self, most: int = _MAX_READERS) -> None:
        self._most = most
        self._open: OrderedDict[InputConfig, RangeReader] = OrderedDict()

    def read(self, config: InputConfig, span: Range) -> Iterator[pa.RecordBatch]:
        """The range's records. A reader that failed is not used again."""
        reader = self._open.pop(config, None) or open_reader(config)
        try:
            yield from reader.read(span)
        except BaseException:
            reader.close()
            raise
        self._open[config] = reader
        while len(self._open) > self._most:
            self._open.popitem(last=False)[1].close()


_READERS = _Readers()
"""Worker processes outlive batches, and so do their connections."""
