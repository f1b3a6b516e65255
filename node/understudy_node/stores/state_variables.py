"""The state variables of `transformWithState`: for a key a value, a list of values, a map of them, or the times of its
timers.

All variables of an operator are column families of one store. Keys of values and lists are `family, row`; keys of maps
and timers `family, int32 length, row of the grouping key, row of the rest`, so that a scan finds all of a grouping key.
A row may be an Avro record instead (`row_forms`).

A value with TTL shows when it expires, and whether it has: Spark removes it in a later batch, and treats the value as
absent until then. TTL is by wall-clock time, so the node's own clock decides `expired`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, cast

import orjson

from understudy_node.checkpoint.state_variables import StateVariable
from understudy_node.engine.scans import after_prefix
from understudy_node.engine.view import FAMILY_BYTES, StateTable
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import (
    MAX_SORTED,
    MAX_START_BYTES,
    Finder,
    FoundMembers,
    by_number,
    found_page,
    require_sortable,
)
from understudy_node.stores.results import ResultPrinter
from understudy_node.stores.row_forms import Columns, RowForm
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.reads.bounds import Selection
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.store_keys import WHOLE_MAP, is_of_whole_map
from understudy_shared.spark.temporal import timestamp_text
from understudy_shared.spark.types import Field, StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

_LENGTH: Final = struct.Struct("<i")
_SORTED_TIME: Final = struct.Struct(">q")
_MARKED_TIME_BYTES: Final = 9
_PADDING_BYTES: Final = 7
_SLOT: Final = struct.Struct("<qii")
"""The bytes before the time in its row: null bits, its size, its offset."""


class Timer(NamedTuple):
    """A timer: the bytes that order it, its time, and its grouping key."""

    rank: bytes
    time_ms: int
    key: Columns


class TimesTable(NamedTuple):
    """The table of timers in the order of their times, which Spark keeps next to the one by key.

    Its keys begin with a time in bytes that sort as times do (`RangeKeyScanStateEncoder`): a marker, and the number
    with the greatest byte first. `grouping` reads the grouping key after the time.
    """

    table: StateTable
    row_prefix: bytes
    grouping: Callable[[bytes], Columns]

    def between(self, view: TaskView, low_ms: int, high_ms: int | None, after: bytes | None) -> Iterator[Timer]:
        """Yield the timers from `low_ms` to before `high_ms` after a rank, which is a key without its family."""
        state = view.stores[self.table.store]
        if not self.table.is_in(state):
            return
        first = self.table.first_bytes(state)
        start = first + (self._start(low_ms) if after is None else after + b"\0")
        end = after_prefix(first) if high_ms is None else first + self._start(high_ms)
        before = len(self._start(0)) - _SORTED_TIME.size
        for kept, _ in state.scan(start, end):
            rank = kept[FAMILY_BYTES:]
            rest = before + _SORTED_TIME.size + _PADDING_BYTES
            if len(rank) < rest or not rank.startswith(self._head):
                raise CorruptFileError("the key of a timer does not begin with a time", where=f"table {self.table}")
            yield Timer(rank, _SORTED_TIME.unpack_from(rank, before)[0], self.grouping(rank[rest:]))

    @property
    def _head(self) -> bytes:
        row = _SLOT.pack(0, _MARKED_TIME_BYTES, _SLOT.size)
        length = len(self.row_prefix) + len(row) + _MARKED_TIME_BYTES + _PADDING_BYTES
        return _LENGTH.pack(length) + self.row_prefix + row

    def _start(self, time_ms: int) -> bytes:
        """Return the prefix of a time's keys, after the family: as Spark's `RangeKeyScanStateEncoder` writes them."""
        return self._head + (b"\1" if time_ms >= 0 else b"\0") + _SORTED_TIME.pack(time_ms)


_POSITION_BYTES: Final = 8
_TIME: Final = struct.Struct("<q")
_TIME_ROW_BYTES: Final = 16
"""Size of a time's row: null bitmap and slot."""

PrintValue = Callable[[bytes], dict[str, object]]
"""A function from a stored row to the members for its content."""
NowMs = Callable[[], int]


def value_printer(
    variable: StateVariable, names: tuple[str, ...], print_result: ResultPrinter | None, now_ms: NowMs
) -> PrintValue:
    """Compile a function from a stored row to `value`, `result` where that is known, and of a TTL when it ends and
    whether it has.
    """
    fields = tuple(replace(column, name=name) for column, name in zip(variable.value.fields, names, strict=True))
    if not variable.has_ttl:
        print_plain = compile_json_printer(StructType(fields))
        return lambda row: _with_result(print_plain(row), print_result)
    value, expiry = variable.stored.fields
    print_stored = compile_json_printer(StructType((replace(value, type=StructType(fields)), expiry)), ("value", "ms"))

    def print_expiring(row: bytes) -> dict[str, object]:
        stored = print_stored(row)
        printed, expires_ms = stored["value"], stored["ms"]
        if not isinstance(printed, dict) or not isinstance(expires_ms, int):
            raise CorruptFileError("a value with TTL lacks its value, or its expiry", where=f"variable {variable.name}")
        moment = timestamp_text(expires_ms * 1000)
        return {**_with_result(printed, print_result), "expires_at": moment, "expired": now_ms() >= expires_ms}

    return print_expiring


class _Variable(Finder):
    """A finder of a variable's records, in its own table."""

    def __init__(self, table: StateTable, form: RowForm) -> None:
        super().__init__(form.prefix)
        self._table = table
        self._form = form

    def first_bytes(self, view: TaskView) -> bytes | None:
        state = view.stores[self._table.store]
        return self._table.first_bytes(state) if self._table.is_in(state) else None


class ValueVariable(_Variable):
    """A finder of a key's value."""

    def __init__(self, table: StateTable, print_value: PrintValue, form: RowForm) -> None:
        super().__init__(table, form)
        self._print = print_value

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        kept = self._kept(view, stored)
        return None if kept is None else _found(self._print(self._form.value_row(kept)), selection)

    def key_row(self, kept: bytes) -> bytes:
        return self._form.key_row(kept[FAMILY_BYTES:])

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        return self._form.start(start)

    def _kept(self, view: TaskView, stored: bytes) -> bytes | None:
        first, key = self.first_bytes(view), self._form.key(stored)
        return None if first is None or key is None else view.stores[self._table.store].get(first + key)


class ListVariable(ValueVariable):
    """A finder of a key's values, in the order that the query put them there."""

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        kept = self._kept(view, stored)
        if kept is None:
            return None
        place = selection.place
        records = self._form.list_records(kept, int.from_bytes(place.start))
        elements = ((position.to_bytes(_POSITION_BYTES), record) for position, record in records)

        def print_element(record: bytes) -> bytes | None:
            return _element(self._print(self._form.list_row(record)), selection)

        return found_page("values", elements, print_element, selection, first=place.number)


class _ByPrefix(_Variable):
    """A finder of a grouping key's records, which have keys with a second part."""

    def __init__(self, table: StateTable, key: StructType, form: RowForm) -> None:
        super().__init__(table, form)
        self._decode, self._encode = compile_row_decoder(key), compile_row_encoder(key)

    def own_bytes(self, kept: bytes) -> bytes:
        (length,) = _LENGTH.unpack_from(kept, FAMILY_BYTES)
        return kept[: FAMILY_BYTES + _LENGTH.size + length]

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        return None if row_bytes is None else self._form.first_start(start, row_bytes)

    def _prefix(self, view: TaskView, grouping: tuple[object, ...]) -> bytes | None:
        """Return the key prefix of a grouping key's records; None if no record can exist."""
        family, part = self.first_bytes(view), self._form.first(grouping)
        return None if family is None or part is None else family + _LENGTH.pack(len(part)) + part

    def _records(
        self, view: TaskView, grouping: tuple[object, ...], start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rest of the key of each record, and what is stored there, from the rest `start` on. All are of the
        grouping key, whatever `start` is.
        """
        prefix = self._prefix(view, grouping)
        if prefix is None:
            return
        skip = len(prefix)
        for key, kept in view.stores[self._table.store].scan(prefix + start, after_prefix(prefix)):
            yield key[skip:], kept

    def _grouping(self, kept: bytes) -> tuple[object, ...]:
        skip = FAMILY_BYTES + _LENGTH.size
        (length,) = _LENGTH.unpack_from(kept, FAMILY_BYTES)
        return self._form.grouping(kept[skip : skip + length])


class MapVariable(_ByPrefix):
    """A finder of the map of a grouping key, in the order of its keys' bytes, or of one entry."""

    def __init__(
        self,
        table: StateTable,
        variable: StateVariable,
        user_names: tuple[str, ...],
        print_value: PrintValue,
        form: RowForm,
    ) -> None:
        super().__init__(table, variable.key, form)
        user_key = variable.user_key
        named = StructType(
            tuple(replace(each, name=name) for each, name in zip(user_key.fields, user_names, strict=True))
        )
        self._columns = len(variable.key.fields)
        self._decode_entry = compile_row_decoder(StructType((*variable.key.fields, *user_key.fields)))
        self._print_user = compile_json_printer(StructType((Field("userKey", named, nullable=True),)))
        self._print = print_value

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        row = stored[len(self.row_prefix) :]
        if not is_of_whole_map(row):
            return self._entry(view, self._decode_entry(row), selection)
        place = selection.place
        records = self._records(view, self._decode(row[: -len(WHOLE_MAP)]), place.start)
        elements = ((record[0][:MAX_START_BYTES], record) for record in records)

        def print_entry(record: tuple[bytes, bytes]) -> bytes | None:
            rest, kept = record
            members = self._print(self._form.value_row(kept))
            return _element({"key": self._print_user(self._form.rest_row(rest))["userKey"], **members}, selection)

        return found_page("entries", elements, print_entry, selection, first=place.number)

    def key_row(self, kept: bytes) -> bytes:
        return self._encode(self._grouping(kept)) + WHOLE_MAP

    def _entry(self, view: TaskView, key: tuple[object, ...], selection: Selection) -> FoundMembers | None:
        prefix, rest = self._prefix(view, key[: self._columns]), self._form.rest((key[self._columns :],))
        if prefix is None or rest is None:
            return None
        kept = view.stores[self._table.store].get(prefix + rest)
        return None if kept is None else _found(self._print(self._form.value_row(kept)), selection)


class Timers(_ByPrefix):
    """A finder of the times when the query is called for a key."""

    def __init__(self, table: StateTable, key: StructType, form: RowForm, by_time: StateTable | None = None) -> None:
        super().__init__(table, key, form)
        self.times = None if by_time is None else TimesTable(by_time, form.prefix, form.grouping)
        """The table of the same timers by time, where it can be read."""

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        records = self._records(view, self._decode(stored[len(self.row_prefix) :]))
        found = [self._form.rest_row(rest) for rest, _ in islice(records, MAX_SORTED + 1)]
        require_sortable("timers", len(found))
        if any(len(row) != _TIME_ROW_BYTES for row in found):
            raise CorruptFileError("a timer has no time", where=f"variable {self._table}")
        times = sorted(cast(int, _TIME.unpack_from(row, _TIME_ROW_BYTES - _TIME.size)[0]) for row in found)
        from_here = by_number(times[selection.offset :])
        return found_page("timers", from_here, _printed_time, selection, first=selection.offset)

    def key_row(self, kept: bytes) -> bytes:
        return self._encode(self._grouping(kept))

    def every(self, view: TaskView) -> Iterator[Timer]:
        """Yield every timer, in the order of stored keys."""
        first = self.first_bytes(view)
        if first is None:
            return
        for kept, _ in view.stores[self._table.store].scan(first, after_prefix(first)):
            row = self._form.rest_row(kept[len(self.own_bytes(kept)) :])
            (time_ms,) = _TIME.unpack_from(row, _TIME_ROW_BYTES - _TIME.size)
            yield Timer((time_ms + 2**63).to_bytes(8) + kept, time_ms, self._grouping(kept))


def _printed_time(time_ms: int) -> bytes:
    return b'"%b"' % timestamp_text(time_ms * 1000).encode()


def _with_result(printed: dict[str, object], print_result: ResultPrinter | None) -> dict[str, object]:
    return {"value": printed} if print_result is None else {"value": printed, "result": print_result(printed)}


def _found(members: dict[str, object], selection: Selection) -> FoundMembers:
    if not _is_hidden(members, selection):
        return FoundMembers(b'"found":true,%b,' % orjson.dumps(members)[1:-1])
    told = {"expires_at": members["expires_at"], "expired": True}
    return FoundMembers(b'"found":false,%b,' % orjson.dumps(told)[1:-1], is_hidden=True)


def _element(members: dict[str, object], selection: Selection) -> bytes | None:
    """Return an element of a list; None for one that is left out."""
    return None if _is_hidden(members, selection) else orjson.dumps(members)


def _is_hidden(members: dict[str, object], selection: Selection) -> bool:
    return members.get("expired") is True and not selection.include_expired
