"""What a stream-stream join keeps of a key on one side: its rows, in the order in which Spark added or moved them.

Two tables hold a side: how many rows a key has, and each row under the key and its index. Both are read from one
version of the task. Their keys are the join's columns; the second has the index as one more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from understudy_node.engine.scan_order import SLOT_BYTES
from understudy_node.engine.view import View
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import Found
from understudy_node.stores.many import found_page
from understudy_node.stores.results import ResultPrinter
from understudy_shared.errors import CorruptFileError
from understudy_shared.selection import Selection
from understudy_shared.spark.json_values import compile_json_printer
from understudy_shared.spark.layout import fixed_bytes
from understudy_shared.spark.types import StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

_MATCHED: Final = "\0matched"
"""The last column of a stored row, under a name that no column of the query has."""

_INDEX: Final = struct.Struct("<q")
_FAMILY: Final = struct.Struct("<h")

_ROWS_AT_ONCE: Final = 100
"""Rows read in one call: a page of long rows ends by its bytes."""

PrintRow = Callable[[bytes], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Table:
    """Where a table is: a store of its own, or in state format 3 a column family of one."""

    store: str
    family: str | None = None

    def __str__(self) -> str:
        return self.family or self.store

    def first_bytes(self, view: View) -> bytes:
        """What its keys begin with: the id of the family, which only a snapshot says."""
        if self.family is None:
            return b""
        family_id = view.base.families.get(self.family)
        if family_id is None:
            raise CorruptFileError(f"the snapshot has no column family {self.family}", where=f"store {self.store}")
        return _FAMILY.pack(family_id)


@dataclass(frozen=True, slots=True)
class SideTables:
    """The tables of a side. `indexed` are the key columns of `rows`, `count` the value of `counts`."""

    counts: Table
    rows: Table
    key: StructType
    indexed: StructType
    count: StructType
    expired: bool | None = None
    """Of every row: False where the query has no watermark on either side. Else unknown: Spark compares columns of a
    row with the watermark by the condition of the join, which is not in the state.
    """


def row_printer(stored: StructType, names: tuple[str, ...], print_result: ResultPrinter | None) -> PrintRow:
    """A function from a stored row to what the side got, its result where known, and whether it found a match."""
    print_stored = compile_json_printer(stored, (*names, _MATCHED))

    def print_row(row: bytes) -> dict[str, object]:
        printed = print_stored(row)
        matched = printed.pop(_MATCHED)
        result = {} if print_result is None else {"result": print_result(printed)}
        return {"value": printed, **result, "matched": matched}

    return print_row


class JoinSide:
    """Finds the rows of a key on one side."""

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
            raise CorruptFileError(f"a key of a join with {count} rows", where=f"table {tables.counts}")
        return found_page("rows", self._printed(rows, stored, range(selection.offset, count)), selection)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept[len(self._row_prefix) + (0 if self._tables.counts.family is None else _FAMILY.size) :]

    def first_bytes(self, view: TaskView) -> bytes:
        """See `Finder`."""
        return self._tables.counts.first_bytes(view.stores[self._tables.counts.store])

    def _printed(self, rows: View, stored: bytes, indexes: range) -> Iterator[bytes]:
        """The rows of a key from an index on, read as they are asked for."""
        key_of, skip = self._keys(self._tables.rows.first_bytes(rows), stored), len(self._row_prefix)
        for start in range(0, len(indexes), _ROWS_AT_ONCE):
            part = indexes[start : start + _ROWS_AT_ONCE]
            for index, row in zip(part, rows.get_many([key_of(index) for index in part]), strict=True):
                if row is None:
                    where = f"table {self._tables.rows}"
                    raise CorruptFileError(f"row {index} of {indexes.stop} of a key is missing", where=where)
                yield orjson.dumps({**self._print(row[skip:]), "expired": self._tables.expired})

    def _keys(self, family: bytes, stored: bytes) -> Callable[[int], bytes]:
        """From an index to the key of a key's row. They are alike but for the index, which is a slot."""
        skip, slot = len(self._row_prefix), len(family) + self._slot
        first = family + stored[:skip] + self._encode_indexed((*self._decode_key(stored[skip:]), 0))
        head, tail = first[:slot], first[slot + SLOT_BYTES :]
        return lambda index: head + _INDEX.pack(index) + tail
