"""The state of Spark's own operators: keys of deduplications, sessions of session windows, rows of the sides of joins,
and the groups of `flatMapGroupsWithState` and `applyInPandasWithState`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple, cast

import orjson

from understudy_node.checkpoint.operators import SESSION_WINDOW, TIMEOUT
from understudy_node.engine.scans import SLOT_BYTES, ScanOrder, after_prefix
from understudy_node.engine.view import FAMILY_BYTES, StateTable, StateView
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import (
    MAX_SORTED,
    Expiry,
    Finder,
    FoundMembers,
    MakeFinder,
    by_number,
    found_page,
    require_sortable,
)
from understudy_node.stores.results import ResultPrinter
from understudy_node.stores.row_forms import split_values
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.reads.bounds import Selection
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.key_codec import Normaliser, compile_normaliser
from understudy_shared.spark.temporal import timestamp_text
from understudy_shared.spark.types import LongType, StructType
from understudy_shared.spark.unsafe_row import bitmap_words, compile_row_decoder, compile_row_encoder, fixed_bytes

SEEN: Final = b'"found":true,'
"""The member for a key of a set without an expiry."""


class ExpiringSet(Finder):
    """A finder of a key of `dropDuplicatesWithinWatermark` and its expiry.

    Spark removes a key in the first batch with a watermark that has reached its expiry. The watermark that a version
    leaves to the next batch may have passed it before that batch runs: such a key is `expired`, and still there.
    `value` has one column, microseconds.
    """

    def __init__(self, store_name: str, value: StructType, expiry: Expiry, row_prefix: bytes) -> None:
        super().__init__(row_prefix)
        self._store_name = store_name
        self._expiry = expiry
        self._decode = compile_row_decoder(value)

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        kept = view.stores[self._store_name].get(stored)
        if kept is None:
            return None
        (expires_us,) = self._decode(kept[len(self.row_prefix) :])
        if not isinstance(expires_us, int):
            raise CorruptFileError("a key of a set has no expiry", where=f"store {self._store_name}")
        expired = self._expiry.is_expired(expires_us, view)
        is_hidden = expired is True and not selection.include_expired
        members = b'"found":%b,"expires_at":"%b","expired":%b,' % (
            b"false" if is_hidden else b"true",
            timestamp_text(expires_us).encode(),
            orjson.dumps(expired),
        )
        return FoundMembers(members, is_hidden)


class SeenSet(Finder):
    """A finder of a key that is stored for ever."""

    def __init__(self, store_name: str, row_prefix: bytes) -> None:
        super().__init__(row_prefix)
        self._store_name = store_name

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        return None if view.stores[self._store_name].get(stored) is None else FoundMembers(SEEN)


class EitherZero(Finder):
    """A finder of a key with floats as it is, else as Spark 4.3 normalises it.

    Up to 4.1 Spark stores both -0.0 and 0.0 in the keys of a deduplication. Later it stores 0.0 for both, and a
    checkpoint does not record which Spark wrote a key.
    """

    def __init__(self, make_finder: MakeFinder, key: StructType, normalise: Normaliser, row_prefix: bytes) -> None:
        super().__init__(row_prefix)
        self._finder = make_finder(row_prefix)
        self._decode, self._encode, self._normalise = compile_row_decoder(key), compile_row_encoder(key), normalise

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        found = self._finder.find(view, stored, selection)
        if found is not None:
            return found
        normal = self.row_prefix + self._encode(self._normalise(self._decode(stored[len(self.row_prefix) :])))
        return None if normal == stored else self._finder.find(view, normal, selection)


def either_zero(make_finder: MakeFinder, key: StructType) -> MakeFinder | None:
    """Make a finder for keys with floats; None for a key that is stored in one way only."""
    normalise = compile_normaliser(key)
    return None if normalise is None else partial(EitherZero, make_finder, key, normalise)


_START_ROW_BYTES: Final = 1 + 16
"""Size of RocksDB's part of a key for the start: version byte, null bitmap, slot."""

_LENGTH: Final = struct.Struct("<i")

PrintSession = Callable[[bytes], tuple[dict[str, object], int]]
"""A function from a stored row to a session and its end, microseconds."""


def session_order(key: StructType, *, one_row: bool) -> ScanOrder:
    """Return the order of sessions. `one_row`: a key is one row, its last column the start."""
    return ScanOrder(fixed_bytes(key) - SLOT_BYTES if one_row else None)


def session_printer(value: StructType, names: tuple[str, ...], print_result: ResultPrinter | None) -> PrintSession:
    """Compile a function from a stored row to a session: start, end, row, and the result where that is known."""
    print_value = compile_json_printer(value, names)
    at = [field.name for field in value.fields].index(SESSION_WINDOW)
    window_name, decode = names[at], compile_row_decoder(value)

    def print_session(row: bytes) -> tuple[dict[str, object], int]:
        printed = print_value(row)
        window, bounds = printed[window_name], decode(row)[at]
        if not isinstance(window, dict) or not isinstance(bounds, tuple) or not isinstance(bounds[1], int):
            raise CorruptFileError("a session has no window", where="a row")
        result = {} if print_result is None else {"result": print_result(printed)}
        return {"start": window["start"], "end": window["end"], "value": printed, **result}, bounds[1]

    return print_session


class StoredSession(NamedTuple):
    """A session: what an answer shows of it, its end in microseconds, and whether it has expired."""

    members: dict[str, object]
    end_us: int
    expired: bool | None


class Sessions(Finder):
    """A finder of a key's sessions, in the order of their starts, by a scan over the key without a start.

    Each session is a record of its own. RocksDB keys are `int32 length, prefix row, row of the start`; the HDFS-backed
    provider's are one row, reordered here with the start at the end (`ScanOrder`). `key` has the start as its last
    column.
    """

    def __init__(
        self, store_name: str, key: StructType, expiry: Expiry, print_session: PrintSession, row_prefix: bytes
    ) -> None:
        super().__init__(row_prefix)
        self._store_name = store_name
        self.expiry = expiry
        self.start_type = key.fields[-1].type
        self._print = print_session
        prefix_type = StructType(key.fields[:-1])
        self._encode_prefix, self._decode_prefix = compile_row_encoder(prefix_type), compile_row_decoder(prefix_type)
        self._encode, self._decode = compile_row_encoder(key), compile_row_decoder(key)
        self._order = session_order(key, one_row=not row_prefix)
        self._rest_bytes = _START_ROW_BYTES if row_prefix else SLOT_BYTES
        self._has_same_bitmap = bitmap_words(len(prefix_type.fields)) == bitmap_words(len(key.fields))

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        found = self.records(view, stored)
        rows = by_number(value for _, value in found[selection.offset :])

        def print_value(value: bytes) -> bytes | None:
            session = self.read(value, view)
            if session.expired and not selection.include_expired:
                return None
            return orjson.dumps({**session.members, "expired": session.expired})

        return found_page("sessions", rows, print_value, selection, first=selection.offset)

    def records(self, view: TaskView, stored: bytes) -> list[tuple[int, bytes]]:
        """Return start and record of each session of a key, in the order of their starts. Raises the problem of a key
        with too many.
        """
        prefix = self._prefix_of(stored)
        records = view.stores[self._store_name].scan(prefix, after_prefix(prefix))
        found = list(islice(records, MAX_SORTED + 1))
        require_sortable("sessions", len(found))
        if any(len(key) != len(prefix) + self._rest_bytes for key, _ in found):
            raise CorruptFileError("a session's key has another length than its columns", where=self._store_name)
        return sorted([(_start_of(key), value) for key, value in found], key=itemgetter(0))

    def read(self, record: bytes, view: TaskView) -> StoredSession:
        session, end_us = self._print(record[len(self.row_prefix) :])
        return StoredSession(session, end_us, self.expiry.is_expired(end_us, view))

    def key_row(self, kept: bytes) -> bytes:
        if self.row_prefix:
            (length,) = _LENGTH.unpack_from(kept)
            return kept[_LENGTH.size + len(self.row_prefix) : _LENGTH.size + length]
        return self._encode_prefix(self._decode(self._order.original(kept))[:-1])

    def own_bytes(self, kept: bytes) -> bytes:
        return kept[: -self._rest_bytes]

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        """See `KeyRecords`. RocksDB's keys begin with the length of the row; the other provider's rows have one column
        more, which takes a bit where there is room for it.
        """
        if not self.row_prefix:
            return start if self._has_same_bitmap else None
        if row_bytes is None:
            return None
        return _LENGTH.pack(len(self.row_prefix) + row_bytes) + self.row_prefix + start

    def _prefix_of(self, stored: bytes) -> bytes:
        if self.row_prefix:
            return _LENGTH.pack(len(stored)) + stored
        row = (*self._decode_prefix(stored), 0)
        return self._order.kept(self._encode(row))[:-SLOT_BYTES]


def _start_of(key: bytes) -> int:
    return cast(int, struct.unpack_from("<q", key, len(key) - SLOT_BYTES)[0])


_MATCHED: Final = "\0matched"
"""The last column of a stored row, under a name that no column of the query has."""

_INDEX: Final = struct.Struct("<q")
_TIME_BYTES: Final = 8
"""Size of the event time after a key; its bytes sort as the times do."""

_POSITION_BYTES: Final = 8

_ROWS_AT_ONCE: Final = 100
"""Number of rows read in one call: a page of long rows ends by its bytes."""

PrintRow = Callable[[bytes], dict[str, object]]


@dataclass(frozen=True, slots=True)
class SideTables:
    """The tables of a side. `indexed` are the key columns of `rows`, `count` the value of `counts`."""

    counts: StateTable
    rows: StateTable
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


class JoinSide(Finder):
    """A finder of a key's rows on one side, in the order that Spark added or moved them
    (`SymmetricHashJoinStateManager`).

    Up to state format 3 two tables hold a side: how many rows a key has, and each row under the key and its index. Both
    are read from one version of the task. Their keys are the join's columns; the second has the index as one more.
    """

    def __init__(self, tables: SideTables, print_row: PrintRow, row_prefix: bytes) -> None:
        super().__init__(row_prefix)
        self._tables = tables
        self._print = print_row
        self._decode_key, self._encode_indexed = compile_row_decoder(tables.key), compile_row_encoder(tables.indexed)
        self._decode_count = compile_row_decoder(tables.count)
        self._slot = len(row_prefix) + fixed_bytes(tables.indexed) - SLOT_BYTES

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        tables, skip = self._tables, len(self.row_prefix)
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
        return kept[len(self.row_prefix) + (0 if self._tables.counts.family is None else FAMILY_BYTES) :]

    def first_bytes(self, view: TaskView) -> bytes:
        return self._tables.counts.first_bytes(view.stores[self._tables.counts.store])

    def _printed(self, row: bytes) -> bytes:
        return orjson.dumps({**self._print(row), "expired": self._tables.expired})

    def _from(self, rows: StateView, stored: bytes, indexes: range) -> Iterator[bytes]:
        """Yield the rows of a key from an index on, read as they are asked for."""
        key_of, skip = self._keys(self._tables.rows.first_bytes(rows), stored), len(self.row_prefix)
        for start in range(0, len(indexes), _ROWS_AT_ONCE):
            part = indexes[start : start + _ROWS_AT_ONCE]
            for index, row in zip(part, rows.get_many([key_of(index) for index in part]), strict=True):
                if row is None:
                    where = f"table {self._tables.rows}"
                    raise CorruptFileError(f"row {index} of {indexes.stop} of a key is missing", where=where)
                yield row[skip:]

    def _keys(self, family: bytes, stored: bytes) -> Callable[[int], bytes]:
        """Return a function from an index to the key of a key's row. The keys differ only in the index, a slot."""
        skip, slot = len(self.row_prefix), len(family) + self._slot
        first = family + stored[:skip] + self._encode_indexed((*self._decode_key(stored[skip:]), 0))
        head, tail = first[:slot], first[slot + SLOT_BYTES :]
        return lambda index: head + _INDEX.pack(index) + tail


class TimedJoinSide(Finder):
    """A finder of a key's rows on one side, by their event time, and within one time in order of arrival. From state
    format 4 on one table has lists of rows, under the key and their event time.

    `expired` is a member of every row: see `SideTables`.
    """

    def __init__(self, table: StateTable, expired: bool | None, print_row: PrintRow, row_prefix: bytes) -> None:
        super().__init__(row_prefix)
        self._table = table
        self._expired = expired
        self._print = print_row

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        rows, first = self._rows(view, stored, selection.place.start), selection.place.number
        return found_page("rows", rows, self._printed, selection, first=first)

    def key_row(self, kept: bytes) -> bytes:
        return kept[FAMILY_BYTES + len(self.row_prefix) : -_TIME_BYTES]

    def first_bytes(self, view: TaskView) -> bytes:
        return self._table.first_bytes(view.stores[self._table.store])

    def own_bytes(self, kept: bytes) -> bytes:
        return kept[:-_TIME_BYTES]

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
                kept, prefix=self.row_prefix, where=where, at=int.from_bytes(at) if begins == time else 0
            ):
                yield begins + position.to_bytes(_POSITION_BYTES), row


def stored_state(declared: StructType) -> StructType:
    """Return the columns of a group as they are stored. State format 2 has a struct `groupState`, null when only a
    timeout is set; format 1 has the columns of the state. Where the query uses timeouts, `timeoutTimestamp` comes last:
    milliseconds, or -1. In format 1 Spark declares the timeout an int, and writes a long."""
    if not has_timeout(declared):
        return declared
    *state, timeout = declared.fields
    return StructType((*state, replace(timeout, type=LongType())))


def has_timeout(value: StructType) -> bool:
    return bool(value.fields) and value.fields[-1].name == TIMEOUT


def with_timeout(value: StructType, print_found: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a printer that adds a group's timeout to the members of `print_found`."""
    count = len(value.fields)
    start = 8 * (bitmap_words(count) + count - 1)

    def print_with_timeout(row: bytes) -> bytes:
        found = print_found(row)  # It refuses a damaged row.
        timeout_ms = int.from_bytes(row[start : start + 8], "little", signed=True)
        moment = "null" if timeout_ms < 0 else f'"{timestamp_text(timeout_ms * 1000)}"'
        return b'%b"timeout_at":%b,' % (found, moment.encode())

    return print_with_timeout
