"""The timers of a partition in the order of their times, by the table that Spark keeps for that.

Its keys begin with a time in bytes that sort as times do (`RangeKeyScanStateEncoder`): a marker, and the number with
the greatest byte first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from understudy_node.engine.scans import after_prefix
from understudy_node.engine.view import FAMILY_BYTES, Table
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.row_forms import Columns
from understudy_shared.base.errors import CorruptFileError

_LENGTH: Final = struct.Struct("<i")
_TIME: Final = struct.Struct(">q")
_MARKED_TIME_BYTES: Final = 9
_PADDING_BYTES: Final = 7
_SLOT: Final = struct.Struct("<qii")
"""The bytes before the time in its row: null bits, its size, its offset."""


class Timer(NamedTuple):
    """A timer: the bytes by which it is ordered, its time, and its grouping key."""

    rank: bytes
    time_ms: int
    key: Columns


class TimesTable(NamedTuple):
    """The table of timers by time. `grouping` reads the grouping key behind the time."""

    table: Table
    row_prefix: bytes
    grouping: Callable[[bytes], Columns]

    def between(self, view: TaskView, low_ms: int, high_ms: int | None, after: bytes | None) -> Iterator[Timer]:
        """Yield the timers from `low_ms` to before `high_ms` behind a rank, which is a key without its family."""
        state = view.stores[self.table.store]
        if not self.table.is_in(state):
            return
        first = self.table.first_bytes(state)
        start = first + (self._start(low_ms) if after is None else after + b"\0")
        end = after_prefix(first) if high_ms is None else first + self._start(high_ms)
        before = len(self._start(0)) - _TIME.size
        for kept, _ in state.scan(start, end):
            rank = kept[FAMILY_BYTES:]
            rest = before + _TIME.size + _PADDING_BYTES
            if len(rank) < rest or not rank.startswith(self._head):
                raise CorruptFileError("the key of a timer does not begin with a time", where=f"table {self.table}")
            yield Timer(rank, _TIME.unpack_from(rank, before)[0], self.grouping(rank[rest:]))

    @property
    def _head(self) -> bytes:
        row = _SLOT.pack(0, _MARKED_TIME_BYTES, _SLOT.size)
        length = len(self.row_prefix) + len(row) + _MARKED_TIME_BYTES + _PADDING_BYTES
        return _LENGTH.pack(length) + self.row_prefix + row

    def _start(self, time_ms: int) -> bytes:
        """Return how the keys of a time begin, behind the family: as Spark's `RangeKeyScanStateEncoder` writes them."""
        return self._head + (b"\1" if time_ms >= 0 else b"\0") + _TIME.pack(time_ms)
