"""The state of one side of a stream-stream join: the rows of a key, in the order in which Spark added or moved them
(`SymmetricHashJoinStateManager`).

Up to state format 3 two tables hold a side: how many rows a key has, and each row under the key and its index. Both are
read from one version of the task. Their keys are the join's columns; the second has the index as one more. In format 4
one table has lists of rows, under the key and their event time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from understudy_node.engine.scans import SLOT_BYTES, after_prefix
from understudy_node.engine.view import FAMILY_BYTES, Table, View
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.element_pages import by_number, found_page
from understudy_node.stores.finder import Found
from understudy_node.stores.multi_values import split_values
from understudy_node.stores.results import ResultPrinter
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.reads.bounds import Selection
from understudy_shared.spark.json_values import compile_json_printer
from understudy_shared.spark.layout import fixed_bytes
from understudy_shared.spark.types import StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

_MATCHED: Final = "\0matched"
"""The last column of a stored row, under a name that no column of the query has."""

_INDEX: Final = struct.Struct("<q")
_TIME_BYTES: Final = 8
"""Size of the event time behind a key; its bytes sort as the times do."""

_POSITION_BYTES: Final = 8

_ROWS_AT_ONCE: Final = 100
"""Number of rows read in one call: a page of long rows ends by its bytes."""

PrintRow = Callable[[bytes], dict[str, object]]


@dataclass(frozen=True, slots=True)
class SideTables:
    """The tables of a side. `indexed` are the key columns of `rows`, `count` the value of `counts`."""

    counts: Table
    rows: Table
    key: StructType
    indexed: StructType
    count: StructType
    expired: bool | None = None
    """Whether its rows have expired: False where the query has no watermark on either side. Else unknown: Spark
    compares columns of a row with the watermark by the condition of the join, which is not in the state.
    """


def row_printer(
    stored: StructType, names: tuple[str, ...], print_result: ResultPrinter | None, *, has_matched: bool = True
) -> PrintRow:
    """Compile a function from a stored row to the side's row, its result if known, and whether it found a match: null
    where that is not stored.
    """
    print_stored = compile_json_printer(stored, (*names, _MATCHED) if has_matched else names)

    def print_row(row: bytes) -> dict[str, object]:
        printed = print_stored(row)
        matched = printed.pop(_MATCHED, None)
        result = {} if print_result is None else {"result": print_result(printed)}
        return {"value": printed, **result, "matched": matched}

    return print_row


class JoinSide:
    """A finder of a key's rows on one side."""

    def __init__(self, tables: SideTables, print_row: PrintRow, row_prefix: bytes) -> None:
        self._tables = tables
        self._print = print_row
        self._row_prefix = row_prefix
        self._decode_key, self._encode_indexed = compile_row_decoder(tables.key), compile_row_encoder(tables.indexed)
        self._decode_count = compile_row_decoder(tables.count)
        self._slot = len(row_prefix) + fixed_bytes(tables.indexed) - SLOT_BYTES

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        tables, skip = self._tables, len(self._row_prefix)
        counts, rows = view.stores[tables.counts.store], view.stores[tables.rows.store]
        kept = counts.get(tables.counts.first_bytes(counts) + stored)
        if kept is None:
            return None
        (count,) = self._decode_count(kept[skip:])
        if not isinstance(count, int) or count < 1:
            raise CorruptFileError(f"a key of a join has {count} rows", where=f"table {tables.counts}")
        found = by_number(self._from(rows, stored, range(selection.offset, count)))
        return found_page("rows", found, self._printed, selection, first=selection.offset)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept[len(self._row_prefix) + (0 if self._tables.counts.family is None else FAMILY_BYTES) :]

    def first_bytes(self, view: TaskView) -> bytes:
        """See `Finder`."""
        return self._tables.counts.first_bytes(view.stores[self._tables.counts.store])

    def own_bytes(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes:
        """See `Finder`."""
        return self._row_prefix + start

    def _printed(self, row: bytes) -> bytes:
        return orjson.dumps({**self._print(row), "expired": self._tables.expired})

    def _from(self, rows: View, stored: bytes, indexes: range) -> Iterator[bytes]:
        """Yield the rows of a key from an index on, read as they are asked for."""
        key_of, skip = self._keys(self._tables.rows.first_bytes(rows), stored), len(self._row_prefix)
        for start in range(0, len(indexes), _ROWS_AT_ONCE):
            part = indexes[start : start + _ROWS_AT_ONCE]
            for index, row in zip(part, rows.get_many([key_of(index) for index in part]), strict=True):
                if row is None:
                    where = f"table {self._tables.rows}"
                    raise CorruptFileError(f"row {index} of {indexes.stop} of a key is missing", where=where)
                yield row[skip:]

    def _keys(self, family: bytes, stored: bytes) -> Callable[[int], bytes]:
        """Return a function from an index to the key of a key's row. The keys differ only in the index, a slot."""
        skip, slot = len(self._row_prefix), len(family) + self._slot
        first = family + stored[:skip] + self._encode_indexed((*self._decode_key(stored[skip:]), 0))
        head, tail = first[:slot], first[slot + SLOT_BYTES :]
        return lambda index: head + _INDEX.pack(index) + tail


class TimedJoinSide:
    """A finder of a key's rows on one side, by their event time, and within one time in order of arrival.

    `expired` is a member of every row: see `SideTables`.
    """

    def __init__(self, table: Table, expired: bool | None, print_row: PrintRow, row_prefix: bytes) -> None:
        self._table = table
        self._expired = expired
        self._print = print_row
        self._row_prefix = row_prefix

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        rows, first = self._rows(view, stored, selection.place.start), selection.place.number
        return found_page("rows", rows, self._printed, selection, first=first)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept[FAMILY_BYTES + len(self._row_prefix) : -_TIME_BYTES]

    def first_bytes(self, view: TaskView) -> bytes:
        """See `Finder`."""
        return self._table.first_bytes(view.stores[self._table.store])

    def own_bytes(self, kept: bytes) -> bytes:
        """See `Finder`. All but the event time."""
        return kept[:-_TIME_BYTES]

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes:
        """See `Finder`."""
        return self._row_prefix + start

    def _printed(self, row: bytes) -> bytes:
        return orjson.dumps({**self._print(row), "expired": self._expired})

    def _rows(self, view: TaskView, stored: bytes, place: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the stored rows of a key from a place on, each with its own place: its time, and where it is in the
        list of that time. No key is a prefix of another: its slots determine its size.
        """
        state, where = view.stores[self._table.store], f"table {self._table}"
        first = self._table.first_bytes(state) + stored
        time, at = place[:_TIME_BYTES], place[_TIME_BYTES:]
        for key, kept in state.scan(first + time, after_prefix(first)):
            if len(key) != len(first) + _TIME_BYTES:
                raise CorruptFileError("a key of a join has another length than its columns", where=where)
            begins = key[-_TIME_BYTES:]
            for position, row in split_values(
                kept, prefix=self._row_prefix, where=where, at=int.from_bytes(at) if begins == time else 0
            ):
                yield begins + position.to_bytes(_POSITION_BYTES), row
