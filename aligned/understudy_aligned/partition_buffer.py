"""The buffer of one partition: records that are fetched and in no batch yet.

Times and sizes are in arrays that grow at the end and shrink at the front: adding a chunk costs its length, and a view
of the queue costs nothing. Records stay in the Arrow batches in which they arrived, whose columns other partitions may
share, until most rows of these columns are taken (`copy_out`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from understudy_aligned.batch_plan import Queue
from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import (
    NO_TIME_MS,
    ROW_SCHEMA,
    Chunk,
    Cursor,
    TopicPartition,
    effective_times_ms,
    running_times_ms,
    to_numpy,
    with_partition_times,
)
from understudy_aligned.options import Undecodable
from understudy_aligned.rows import concat

_LEAST_ROOM = 64
_OFFSET, _ORDINAL, _TIMESTAMP = map(ROW_SCHEMA.get_field_index, ("offset", "ordinal", "timestamp_ms"))
_NO_ROWS = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in ROW_SCHEMA], schema=ROW_SCHEMA)


class Segment(NamedTuple):
    """The part of a partition that a batch takes: `times_ms` are effective times. `timestamps_ms` is NO_TIME_MS for
    poison records.
    """

    span: Range
    rows: list[pa.RecordBatch]
    bytes: int
    timestamps_ms: NDArray[np.int64]
    times_ms: NDArray[np.int64]


class Piece(NamedTuple):
    """Some records of larger columns, which stay in memory as a whole."""

    rows: pa.RecordBatch
    address: int
    """The address of the columns."""
    whole: int
    """The records of the columns."""

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Piece:
        ordinals = rows.column(_ORDINAL).buffers()[1]
        return cls(rows, ordinals.address, ordinals.size // 8)


class Retained:
    """Records after `cursor`, in log order: `records` of them. `bytes` is their size by `record_size`."""

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
        self.pieces: deque[Piece] = deque()
        self._columns = _NumberQueues()

    def __len__(self) -> int:
        return self.records

    def add(self, chunk: Chunk) -> None:
        """Append the records that follow those in the buffer."""
        own_ms = to_numpy(chunk.rows.column(_TIMESTAMP), null=NO_TIME_MS)
        times_ms = running_times_ms(own_ms, time_ms=self._newest_ms, max_jump_ms=self._max_jump_ms)
        size = int(chunk.sizes.sum())
        begin_ms = int(self._columns.effective_ms[-1]) if self.records else NO_TIME_MS
        effective_ms = effective_times_ms(self._usable(own_ms, times_ms), times_ms, begin_ms=begin_ms)
        self.pieces.append(Piece.of(chunk.rows))
        self._columns.append(own_ms, times_ms, effective_ms, chunk.sizes)
        self._newest_ms = int(times_ms[-1])
        self.bytes += size
        self.records += len(chunk.sizes)
        self.record_bytes = size / len(chunk.sizes)

    def queue(self, rank: int) -> Queue:
        """Return the queue for planning: effective times of all buffered records. `rank` is the rank of the topic.

        Valid until the next `take`.
        """
        return Queue(self.partition, rank, self._columns.effective_ms, self.cursor.time_ms)

    def first_refused(self, count: int) -> int | None:
        """Return the index of the first of `count` records that ends the query, if there is one.

        With `undecodable=fail` every poison record ends it, with `partition-time` only one before the first timestamp.
        """
        if self._undecodable not in ("fail", "partition-time"):
            return None
        columns = self._columns
        refused = self._usable(columns.timestamps_ms[:count], columns.partition_times_ms[:count]) == NO_TIME_MS
        return int(refused.argmax()) if refused.any() else None

    def offset(self, index: int) -> str:
        """Return the offset of the record at `index`, in the form of its input."""
        for rows, _, _ in self.pieces:
            if index < rows.num_rows:
                return str(rows.column("offset")[index].as_py())
            index -= rows.num_rows
        raise IndexError(index)

    def head(self, count: int) -> Segment:
        """Peek at the first `count` records (1 to all). The arrays of the result are valid until `take`."""
        rows = self._first_rows(count)
        last = rows[-1].num_rows - 1
        columns = self._columns
        end = Cursor(
            offset=rows[-1].column(_OFFSET)[last].as_py(),
            ordinal=rows[-1].column(_ORDINAL)[last].as_py() + 1,
            time_ms=int(columns.partition_times_ms[count - 1]),
        )
        return Segment(
            Range(self.partition, self.cursor, end),
            rows,
            self.bytes if count == self.records else int(columns.sizes[:count].sum()),
            columns.timestamps_ms[:count],
            columns.effective_ms[:count],
        )

    def take(self, count: int) -> Segment:
        """Remove the first `count` records (at least one, at most all) and move the cursor past them."""
        segment = self.head(count)
        self._drop_rows(count)
        self._columns.drop(count)
        self.bytes -= segment.bytes
        self.records -= count
        self.cursor = segment.span.end
        self._begin_batch_anew(int(segment.times_ms[-1]))
        return segment

    def _begin_batch_anew(self, reached_ms: int) -> None:
        """Recompute the effective times of records that had `reached_ms` only because of a record that is taken now."""
        effective_ms = self._columns.effective_ms
        count = int(effective_ms.searchsorted(reached_ms, "right"))
        # The record after them is above `reached_ms`: from there on, no effective time depends on a taken record.
        if count:
            times_ms = self._columns.partition_times_ms[:count]
            own_ms = self._usable(self._columns.timestamps_ms[:count], times_ms)
            effective_ms[:count] = effective_times_ms(own_ms, times_ms)

    def _usable(self, timestamps_ms: NDArray[np.int64], times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        is_replaced = self._undecodable == "partition-time"
        return with_partition_times(timestamps_ms, times_ms) if is_replaced else timestamps_ms

    def _first_rows(self, count: int) -> list[pa.RecordBatch]:
        found = []
        for rows, _, _ in self.pieces:
            found.append(rows if rows.num_rows <= count else rows.slice(0, count))
            count -= found[-1].num_rows
            if not count:
                break
        return found

    def _drop_rows(self, count: int) -> None:
        while count:
            piece = self.pieces.popleft()
            if piece.rows.num_rows > count:
                self.pieces.appendleft(piece._replace(rows=piece.rows.slice(count)))
            count -= min(count, piece.rows.num_rows)


def copy_out(held: Iterable[Retained]) -> None:
    """Copy the remaining records out of columns that are mostly taken, so that the columns can be freed.

    So columns take at most twice the memory of the buffered records, and less is copied in all than was fetched.
    """
    found: dict[tuple[int, int], list[tuple[Retained, int, pa.RecordBatch]]] = {}
    for each in held:
        for place, (rows, address, whole) in enumerate(each.pieces):
            found.setdefault((address, whole), []).append((each, place, rows))
    for (_, whole), parts in found.items():
        if 2 * sum([rows.num_rows for _, _, rows in parts]) < whole:
            copied, begin = concat([*(rows for _, _, rows in parts), _NO_ROWS]), 0  # one alone would not be copied
            for each, place, rows in parts:
                each.pieces[place] = Piece.of(copied.slice(begin, rows.num_rows))
                begin += rows.num_rows


class _NumberQueues:
    """Queues of integers, all of the same length: appended at the end, taken from the front, without moving the others.

    Views that were handed out stay valid: when the array is full, its values are copied into a new one.
    """

    def __init__(self) -> None:
        self._room: NDArray[np.int64] = np.empty((4, _LEAST_ROOM), dtype=np.int64)
        self._start = self._end = 0

    @property
    def timestamps_ms(self) -> NDArray[np.int64]:
        return self._room[0, self._start : self._end]

    @property
    def partition_times_ms(self) -> NDArray[np.int64]:
        return self._room[1, self._start : self._end]

    @property
    def effective_ms(self) -> NDArray[np.int64]:
        """Effective times in a batch that begins at the cursor."""
        return self._room[2, self._start : self._end]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self._room[3, self._start : self._end]

    def append(self, *columns: NDArray[np.int64]) -> None:
        count = len(columns[0])
        if self._end + count > self._room.shape[1]:
            kept = self._room[:, self._start : self._end]
            self._start, self._end = 0, kept.shape[1]
            self._room = np.empty((4, max(_LEAST_ROOM, 2 * (self._end + count))), dtype=np.int64)
            self._room[:, : self._end] = kept
        for row, values in zip(self._room, columns, strict=True):
            row[self._end : self._end + count] = values
        self._end += count

    def drop(self, count: int) -> None:
        self._start += count
