"""What `transformWithState` keeps of a key: a value, a list of values, a map of them, or the times of its timers.

All variables of an operator are column families of one store. Keys of values and lists are `family, row`; those of maps
and timers `family, int32 length, row of the grouping key, row of the rest`, so that a scan finds all of a grouping key.

A value with TTL says when it expires, and whether it has: Spark removes it in a batch after that, and calls the value
absent meanwhile. TTL is by the time of day, so here it is the node's own clock that decides `expired`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, cast

import orjson

from understudy_node.checkpoint.state_variables import StateVariable
from understudy_node.engine.scan_order import after_prefix
from understudy_node.engine.tables import FAMILY_BYTES, Table
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import Found
from understudy_node.stores.many import MAX_SORTED, by_number, found_page, require_sortable
from understudy_node.stores.multi_values import split_values
from understudy_node.stores.places import MAX_START_BYTES
from understudy_node.stores.results import ResultPrinter
from understudy_shared.errors import CorruptFileError
from understudy_shared.selection import Selection
from understudy_shared.spark.json_values import compile_json_printer
from understudy_shared.spark.map_keys import WHOLE_MAP, is_of_whole_map
from understudy_shared.spark.temporal import timestamp_text
from understudy_shared.spark.types import Field, StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

_LENGTH: Final = struct.Struct("<i")
_POSITION_BYTES: Final = 8
_TIME: Final = struct.Struct("<q")
_TIME_ROW_BYTES: Final = 16
"""Null bitmap and slot."""

PrintValue = Callable[[bytes], dict[str, object]]
"""From a stored row to the members that say what is in it."""
NowMs = Callable[[], int]


def value_printer(
    variable: StateVariable, names: tuple[str, ...], print_result: ResultPrinter | None, now_ms: NowMs
) -> PrintValue:
    """A function from a stored row to `value`, `result` where that is known, and of a TTL when it ends and whether it
    has.
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


class ValueVariable:
    """Finds the value of a key."""

    def __init__(self, table: Table, print_value: PrintValue, row_prefix: bytes) -> None:
        self._table = table
        self._print = print_value
        self._row_prefix = row_prefix

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        kept = self._kept(view, stored)
        return None if kept is None else _found(self._print(_row_of(kept, self._row_prefix, self._table)), selection)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept[FAMILY_BYTES + len(self._row_prefix) :]

    def first_bytes(self, view: TaskView) -> bytes | None:
        """See `Finder`."""
        state = view.stores[self._table.store]
        return self._table.first_bytes(state) if self._table.is_in(state) else None

    def _kept(self, view: TaskView, stored: bytes) -> bytes | None:
        first = self.first_bytes(view)
        return None if first is None else view.stores[self._table.store].get(first + stored)


class ListVariable(ValueVariable):
    """Finds the values of a key, in the order in which the query put them there."""

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        kept = self._kept(view, stored)
        if kept is None:
            return None
        place, where = selection.place, f"variable {self._table}"
        rows = split_values(kept, prefix=self._row_prefix, where=where, at=int.from_bytes(place.start))
        elements = ((position.to_bytes(_POSITION_BYTES), row) for position, row in rows)
        return found_page("values", elements, self._printer(selection), selection, first=place.number)

    def _printer(self, selection: Selection) -> Callable[[bytes], bytes | None]:
        """A function that prints a value; None for one that is left out."""
        return lambda row: _element(self._print(row), selection)


class _ByPrefix:
    """Finds the records of a grouping key, whose keys have something more."""

    def __init__(self, table: Table, key: StructType, row_prefix: bytes) -> None:
        wrapped = StructType((Field("key", key, nullable=True),))
        self._table = table
        self._row_prefix = row_prefix
        self._decode, self._encode = compile_row_decoder(key), compile_row_encoder(key)
        self._decode_wrapped, self._encode_wrapped = compile_row_decoder(wrapped), compile_row_encoder(wrapped)

    def first_bytes(self, view: TaskView) -> bytes | None:
        """See `Finder`."""
        state = view.stores[self._table.store]
        return self._table.first_bytes(state) if self._table.is_in(state) else None

    def _prefix(self, family: bytes, grouping: tuple[object, ...]) -> bytes:
        """What the keys of all records of a grouping key begin with."""
        row = self._row_prefix + self._encode_wrapped((grouping,))
        return family + _LENGTH.pack(len(row)) + row

    def _records(
        self, view: TaskView, grouping: tuple[object, ...], start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rest of the key of each record, without the provider's prefix, and what is stored there; from those on
        whose rest begins at `start`. All are of the grouping key, whatever `start` is.
        """
        first = self.first_bytes(view)
        if first is None:
            return
        prefix = self._prefix(first, grouping)
        skip = len(prefix)
        begin = prefix + self._row_prefix + start if start else prefix
        for key, kept in view.stores[self._table.store].scan(begin, after_prefix(prefix)):
            yield _row_of(key[skip:], self._row_prefix, self._table), kept

    def _grouping_and_rest(self, kept: bytes) -> tuple[tuple[object, ...], bytes]:
        """The grouping key of a record's key, and the row of the rest."""
        skip = FAMILY_BYTES + _LENGTH.size
        (length,) = _LENGTH.unpack_from(kept, FAMILY_BYTES)
        (grouping,) = self._decode_wrapped(_row_of(kept[skip : skip + length], self._row_prefix, self._table))
        rest = _row_of(kept[skip + length :], self._row_prefix, self._table)
        return cast("tuple[object, ...]", grouping), rest


class MapVariable(_ByPrefix):
    """Finds the map of a grouping key, in the order of its keys' bytes, or one entry of it."""

    def __init__(
        self,
        table: Table,
        variable: StateVariable,
        user_names: tuple[str, ...],
        print_value: PrintValue,
        row_prefix: bytes,
    ) -> None:
        super().__init__(table, variable.key, row_prefix)
        user_key = variable.user_key
        wrapped = StructType((Field("userKey", user_key, nullable=True),))
        named = StructType(
            tuple(replace(each, name=name) for each, name in zip(user_key.fields, user_names, strict=True))
        )
        self._columns = len(variable.key.fields)
        self._decode_entry = compile_row_decoder(StructType((*variable.key.fields, *user_key.fields)))
        self._encode_user = compile_row_encoder(wrapped)
        self._print_user = compile_json_printer(StructType((Field("userKey", named, nullable=True),)))
        self._print = print_value

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        row = stored[len(self._row_prefix) :]
        if not is_of_whole_map(row):
            return self._entry(view, self._decode_entry(row), selection)
        place = selection.place
        records = self._records(view, self._decode(row[: -len(WHOLE_MAP)]), place.start)
        elements = ((record[0][:MAX_START_BYTES], record) for record in records)
        return found_page("entries", elements, self._printer(selection), selection, first=place.number)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`. The key of the whole map that an entry is in."""
        grouping, _ = self._grouping_and_rest(kept)
        return self._encode(grouping) + WHOLE_MAP

    def _entry(self, view: TaskView, key: tuple[object, ...], selection: Selection) -> Found | None:
        first = self.first_bytes(view)
        if first is None:
            return None
        user_row = self._row_prefix + self._encode_user((key[self._columns :],))
        kept = view.stores[self._table.store].get(self._prefix(first, key[: self._columns]) + user_row)
        return None if kept is None else _found(self._print(_row_of(kept, self._row_prefix, self._table)), selection)

    def _printer(self, selection: Selection) -> Callable[[tuple[bytes, bytes]], bytes | None]:
        """A function that prints an entry; None for one that is left out."""

        def print_entry(record: tuple[bytes, bytes]) -> bytes | None:
            user_row, kept = record
            members = self._print(_row_of(kept, self._row_prefix, self._table))
            return _element({"key": self._print_user(user_row)["userKey"], **members}, selection)

        return print_entry


class Timers(_ByPrefix):
    """Finds the times at which the query is called for a key."""

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        records = self._records(view, self._decode(stored[len(self._row_prefix) :]))
        found = [row for row, _ in islice(records, MAX_SORTED + 1)]
        require_sortable("timers", len(found))
        if any(len(row) != _TIME_ROW_BYTES for row in found):
            raise CorruptFileError("a timer without its time", where=f"variable {self._table}")
        times = sorted(cast(int, _TIME.unpack_from(row, _TIME_ROW_BYTES - _TIME.size)[0]) for row in found)
        from_here = by_number(times[selection.offset :])
        return found_page("timers", from_here, _printed_time, selection, first=selection.offset)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        grouping, _ = self._grouping_and_rest(kept)
        return self._encode(grouping)


def _printed_time(time_ms: int) -> bytes:
    return b'"%b"' % timestamp_text(time_ms * 1000).encode()


def _row_of(kept: bytes, row_prefix: bytes, table: Table) -> bytes:
    """A row without what the provider puts before it."""
    if not kept.startswith(row_prefix):
        raise CorruptFileError("a record is not encoded as a row", where=f"variable {table}")
    return kept[len(row_prefix) :]


def _with_result(printed: dict[str, object], print_result: ResultPrinter | None) -> dict[str, object]:
    return {"value": printed} if print_result is None else {"value": printed, "result": print_result(printed)}


def _found(members: dict[str, object], selection: Selection) -> Found:
    if not _is_hidden(members, selection):
        return Found(b'"found":true,%b,' % orjson.dumps(members)[1:-1])
    told = {"expires_at": members["expires_at"], "expired": True}
    return Found(b'"found":false,%b,' % orjson.dumps(told)[1:-1], is_hidden=True)


def _element(members: dict[str, object], selection: Selection) -> bytes | None:
    """An element of a list; None for one that is left out."""
    return None if _is_hidden(members, selection) else orjson.dumps(members)


def _is_hidden(members: dict[str, object], selection: Selection) -> bool:
    return members.get("expired") is True and not selection.include_expired
