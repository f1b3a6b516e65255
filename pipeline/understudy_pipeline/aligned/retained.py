"""The buffer of one partition: records that are fetched and in no batch yet.

Times and sizes are in arrays that grow at the end and shrink at the front: adding a chunk costs its length, and a view
of the queue costs nothing. Records stay in the Arrow batches in which they arrived.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from understudy_pipeline.aligned.cut import Queue
from understudy_pipeline.aligned.options import Undecodable
from understudy_pipeline.inputs.arrays import to_numpy
from understudy_pipeline.inputs.protocol import Range
from understudy_pipeline.inputs.records import (
    NO_TIME_MS,
    Chunk,
    Cursor,
    TopicPartition,
    effective_times_ms,
    partition_times_ms,
    with_partition_times,
)

_LEAST_ROOM = 64


class Segment(NamedTuple):
    """The part of a partition that a batch takes: `times_ms` are effective times. `timestamps_ms` is NO_TIME_MS for
    poison records.
    """

    span: Range
    rows: list[pa.RecordBatch]
    bytes: int
    timestamps_ms: NDArray[np.int64]
    times_ms: NDArray[np.int64]


class Retained:
    """Records behind `cursor`, in log order: `records` of them. `bytes` is their size by `record_size`.

    A chunk stays in memory until its last record is taken, so actual memory can exceed `bytes` by one chunk.
    """

    def __init__(
        self,
        partition: TopicPartition,
        cursor: Cursor,
        *,
        max_jump_ms: int | None = None,
        undecodable: Undecodable = "fail",
    ) -> None:
        self.partition = partition
        self.cursor = cursor
        self.bytes = 0
        self.records = 0
        self.record_bytes: float | None = None
        """Mean record size of the last chunk. None before the first chunk."""
        self._max_jump_ms = max_jump_ms
        self._undecodable = undecodable
        self._newest_ms = cursor.time_ms
        self._rows: deque[pa.RecordBatch] = deque()
        self._timestamps_ms = _Column()
        self._partition_times_ms = _Column()
        self._effective_ms = _Column()
        """Effective times in a batch that begins at the cursor."""
        self._sizes = _Column()

    def __len__(self) -> int:
        return self.records

    def add(self, chunk: Chunk) -> None:
        """Append the records that follow those in the buffer."""
        stamps = chunk.rows.column("timestamp_ms")
        times_ms = partition_times_ms(stamps, time_ms=self._newest_ms, max_jump_ms=self._max_jump_ms)
        size = int(chunk.sizes.sum())
        own_ms = to_numpy(stamps, null=NO_TIME_MS)
        begin_ms = int(self._effective_ms.values[-1]) if self.records else NO_TIME_MS
        self._rows.append(chunk.rows)
        self._timestamps_ms.append(own_ms)
        self._partition_times_ms.append(times_ms)
        self._effective_ms.append(effective_times_ms(self._usable(own_ms, times_ms), times_ms, begin_ms=begin_ms))
        self._sizes.append(chunk.sizes)
        self._newest_ms = int(times_ms[-1])
        self.bytes += size
        self.records += len(chunk.sizes)
        self.record_bytes = size / len(chunk.sizes)

    def queue(self, rank: int) -> Queue:
        """Return the queue for planning: effective times of all buffered records. `rank` is the rank of the topic.

        Valid until the next `take`.
        """
        return Queue(self.partition, rank, self._effective_ms.values, self.cursor.time_ms)

    def first_refused(self, count: int) -> int | None:
        """Return the index of the first of `count` records that ends the query, if there is one.

        A poison record does with `undecodable=fail`, and with `partition-time` before the first timestamp.
        """
        if self._undecodable not in ("fail", "partition-time"):
            return None
        usable_ms = self._usable(self._timestamps_ms.values[:count], self._partition_times_ms.values[:count])
        found = np.flatnonzero(usable_ms == NO_TIME_MS)
        return int(found[0]) if len(found) else None

    def offset(self, index: int) -> str:
        """Return the offset of the record at `index`, in the form of its input."""
        for rows in self._rows:
            if index < rows.num_rows:
                return str(rows.column("offset")[index].as_py())
            index -= rows.num_rows
        raise IndexError(index)

    def head(self, count: int) -> Segment:
        """Return the first `count` records (1 to all), which stay. Its arrays are valid until `take`."""
        rows = self._first_rows(count)
        last = rows[-1].num_rows - 1
        end = Cursor(
            offset=rows[-1].column("offset")[last].as_py(),
            ordinal=rows[-1].column("ordinal")[last].as_py() + 1,
            time_ms=int(self._partition_times_ms.values[count - 1]),
        )
        return Segment(
            Range(self.partition, self.cursor, end),
            rows,
            int(self._sizes.values[:count].sum()),
            self._timestamps_ms.values[:count],
            self._effective_ms.values[:count],
        )

    def take(self, count: int) -> Segment:
        """Remove the first `count` records (at least one, at most all) and move the cursor behind them."""
        segment = self.head(count)
        self._drop_rows(count)
        for column in (self._timestamps_ms, self._partition_times_ms, self._effective_ms, self._sizes):
            column.drop(count)
        self.bytes -= segment.bytes
        self.records -= count
        self.cursor = segment.span.end
        self._begin_batch_anew(int(segment.times_ms[-1]))
        return segment

    def _begin_batch_anew(self, reached_ms: int) -> None:
        """Compute effective times again of the records that had `reached_ms` because of one that is taken."""
        effective_ms = self._effective_ms.values
        count = int(effective_ms.searchsorted(reached_ms, "right"))
        # The record behind them is above `reached_ms`: from there on nothing depends on what is taken.
        if count:
            times_ms = self._partition_times_ms.values[:count]
            own_ms = self._usable(self._timestamps_ms.values[:count], times_ms)
            effective_ms[:count] = effective_times_ms(own_ms, times_ms)

    def _usable(self, timestamps_ms: NDArray[np.int64], times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        is_replaced = self._undecodable == "partition-time"
        return with_partition_times(timestamps_ms, times_ms) if is_replaced else timestamps_ms

    def _first_rows(self, count: int) -> list[pa.RecordBatch]:
        found = []
        for rows in self._rows:
            found.append(rows if rows.num_rows <= count else rows.slice(0, count))
            count -= found[-1].num_rows
            if not count:
                break
        return found

    def _drop_rows(self, count: int) -> None:
        while count:
            rows = self._rows.popleft()
            if rows.num_rows > count:
                self._rows.appendleft(rows.slice(count))
            count -= min(count, rows.num_rows)


class _Column:
    """A queue of integers: appended at the end, taken from the front, without moving the others.

    Views that were handed out stay valid: when the array is full, its values are copied into a new one.
    """

    def __init__(self) -> None:
        self._room: NDArray[np.int64] = np.empty(_LEAST_ROOM, dtype=np.int64)
        self._start = self._end = 0

    @property
    def values(self) -> NDArray[np.int64]:
        return self._room[self._start : self._end]

    def append(self, values: NDArray[np.int64]) -> None:
        if self._end + len(values) > len(self._room):
            kept = self.values
            self._room = np.empty(max(_LEAST_ROOM, 2 * (len(kept) + len(values))), dtype=np.int64)
            self._room[: len(kept)] = kept
            self._start, self._end = 0, len(kept)
        self._room[self._end : self._end + len(values)] = values
        self._end += len(values)

    def drop(self, count: int) -> None:
        self._start += count
