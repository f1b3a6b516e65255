"""The state of a session window: the sessions of a key, found by a scan over the key without the session's start.

Each session is a record of its own. RocksDB keys are `int32 length, prefix row, row of the start`; the HDFS-backed
provider's are one row, reordered here with the start behind all else (`ScanOrder`). So in both the start comes last.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple, cast

import orjson

from understudy_node.checkpoint.operators import SESSION_WINDOW
from understudy_node.engine.scans import SLOT_BYTES, ScanOrder, after_prefix
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.element_pages import MAX_SORTED, by_number, found_page, require_sortable
from understudy_node.stores.expiry import Expiry
from understudy_node.stores.finder import Found
from understudy_node.stores.results import ResultPrinter
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.reads.bounds import Selection
from understudy_shared.spark.json_values import compile_json_printer
from understudy_shared.spark.layout import bitmap_words, fixed_bytes
from understudy_shared.spark.types import StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

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


class Sessions:
    """A finder of a key's sessions, in the order of their starts. `key` has the start as its last column."""

    def __init__(
        self, store_name: str, key: StructType, expiry: Expiry, print_session: PrintSession, row_prefix: bytes
    ) -> None:
        self._store_name = store_name
        self.expiry = expiry
        self.start_type = key.fields[-1].type
        self._print = print_session
        self._row_prefix = row_prefix
        prefix_type = StructType(key.fields[:-1])
        self._encode_prefix, self._decode_prefix = compile_row_encoder(prefix_type), compile_row_decoder(prefix_type)
        self._encode, self._decode = compile_row_encoder(key), compile_row_decoder(key)
        self._order = session_order(key, one_row=not row_prefix)
        self._rest_bytes = _START_ROW_BYTES if row_prefix else SLOT_BYTES
        self._has_same_bitmap = bitmap_words(len(prefix_type.fields)) == bitmap_words(len(key.fields))

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        found = self.records(view, stored)
        rows = by_number(value for _, value in found[selection.offset :])
        return found_page("sessions", rows, self._printer(view, selection), selection, first=selection.offset)

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
        """Read the record of a session."""
        session, end_us = self._print(record[len(self._row_prefix) :])
        return StoredSession(session, end_us, self.expiry.is_expired(end_us, view))

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        if self._row_prefix:
            (length,) = _LENGTH.unpack_from(kept)
            return kept[_LENGTH.size + len(self._row_prefix) : _LENGTH.size + length]
        return self._encode_prefix(self._decode(self._order.original(kept))[:-1])

    def first_bytes(self, view: TaskView) -> bytes:
        """See `Finder`."""
        return b""

    def own_bytes(self, kept: bytes) -> bytes:
        """See `Finder`. All but the start."""
        return kept[: -self._rest_bytes]

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        """See `Finder`. RocksDB's keys begin with the length of the row; the other provider's rows have one column
        more, which takes a bit where there is room for it.
        """
        if not self._row_prefix:
            return start if self._has_same_bitmap else None
        if row_bytes is None:
            return None
        return _LENGTH.pack(len(self._row_prefix) + row_bytes) + self._row_prefix + start

    def _printer(self, view: TaskView, selection: Selection) -> Callable[[bytes], bytes | None]:
        """Return a function that prints a session; None for one that is left out."""

        def print_value(value: bytes) -> bytes | None:
            session = self.read(value, view)
            if session.expired and not selection.include_expired:
                return None
            return orjson.dumps({**session.members, "expired": session.expired})

        return print_value

    def _prefix_of(self, stored: bytes) -> bytes:
        """Return the bytes with which the keys of all sessions begin."""
        if self._row_prefix:
            return _LENGTH.pack(len(stored)) + stored
        row = (*self._decode_prefix(stored), 0)
        return self._order.kept(self._encode(row))[:-SLOT_BYTES]


def _start_of(key: bytes) -> int:
    return cast(int, struct.unpack_from("<q", key, len(key) - SLOT_BYTES)[0])
