"""The rows of an answer about windows: one for each window of a key, in the order of their starts.

Windows of time are keys of their own, found among all keys of a partition; sessions are elements of one key.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final, cast

import orjson

from understudy_node.replica.readings import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.expiry import Expiry
from understudy_node.stores.finding import FindingReader
from understudy_node.stores.lookup import StoreReader
from understudy_node.stores.ordered_scanning import RankedPart, ordered_part
from understudy_node.stores.row_order import RowOrder
from understudy_node.stores.scan_keys import ScannedKey
from understudy_node.stores.scan_rows import RowMaker
from understudy_node.stores.scanning import stamp_of
from understudy_node.stores.sessions import Sessions
from understudy_shared.base.errors import BadKeyError
from understudy_shared.http.lookup_requests import numbers_as_text
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import Column
from understudy_shared.reads.ordering import OrderBytes, compile_order
from understudy_shared.reads.scan_page import PartPage, Place, Room, Stamp
from understudy_shared.reads.scan_prefix import KeyPrefix
from understudy_shared.reads.scan_question import ScanQuestion
from understudy_shared.reads.selection import Selection
from understudy_shared.reads.where import Term, compile_window_range
from understudy_shared.reads.windows import WindowKey, WindowsOf, window_columns, window_key
from understudy_shared.spark.key_codec import Row
from understudy_shared.spark.times import utc_text
from understudy_shared.spark.types import LongType

_STATES: Final = {True: "closed", False: "open", None: None}
_order_of_starts = cast(OrderBytes, compile_order(LongType()))


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """The windows of time of a key: `rows` finds and prints the keys that have them."""

    rows: RowMaker
    name: str
    at: int
    expiry: Expiry

    @property
    def reader(self) -> StoreReader:
        return self.rows.reader

    @property
    def is_sought(self) -> bool:
        return False

    def part(
        self, reading: Reading, place: Place, room: Room, has_left: Callable[[], bool]
    ) -> Generator[None, None, PartPage]:
        """Read the first windows of a partition behind a rank."""
        part = yield from ordered_part(self.rows, reading, place, room, has_left, print_row=self._row)
        return part._replace(stamp=_stamped(reading.view, self.expiry))

    def _row(self, key: ScannedKey, reading: Reading, partition: int) -> bytes | None:
        made, codec = self.rows.row(key, reading, partition), self.reader.store.codec
        if made is None:
            return None
        _, end_us = cast("tuple[int, int]", codec.decode(self.reader.key_row(key.kept))[self.at])
        expired = self.expiry.is_expired(end_us, reading.view)
        row = orjson.loads(made)
        window = row.pop("key")[self.name]
        return _printed({**window, **row}, expired, self.rows.selection)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """The sessions of a key, which is stored as `stored`."""

    reader: FindingReader
    sessions: Sessions
    stored: bytes
    terms: tuple[Term, ...]
    selection: Selection
    longs_as_text: bool

    @property
    def is_sought(self) -> bool:
        return True

    def part(
        self, reading: Reading, place: Place, room: Room, has_left: Callable[[], bool]
    ) -> Generator[None, None, PartPage]:
        """Read the first sessions behind a rank: one seek."""
        view, made = reading.view, RankedPart(room, place.after)
        records = self.sessions.records(view, self.stored)
        made.looked_at = len(records)
        for start_us, record in records:
            rank = _order_of_starts(start_us)
            if place.after is not None and rank <= place.after:
                continue
            session = self.sessions.read(record, view)
            yield
            if not all(term.matches((start_us, session.end_us)[term.column.indexes[-1]]) for term in self.terms):
                continue
            row = _printed(session.members, session.expired, self.selection)
            if row is None:
                continue
            if not made.take(rank, _longs_as_text(row) if self.longs_as_text else row):
                break
        return made.part(view, "seek", _stamped(view, self.sessions.expiry))


def window_maker(
    reader: StoreReader, question: ScanQuestion, asked: WindowsOf, selection: Selection, *, longs_as_text: bool
) -> TimeWindows | SessionWindows:
    """Compile a question for the windows of a key. Raises the problem of one that does not fit the store."""
    codec = reader.store.codec
    key = window_key(codec, reader.store.kind)
    row = _parsed(key, asked)
    is_overlap = asked.by == "overlap"
    if key.at is None:
        assert isinstance(reader, FindingReader), "as sessions are read"
        sessions = cast(Sessions, reader.finder)
        start, end = (Column("key", (name,), (at,), sessions.start_type) for at, name in enumerate(("start", "end")))
        terms = compile_window_range(start, end, question.low, question.high, is_overlap=is_overlap)
        stored = reader.row_prefix + codec.encode(row)
        return SessionWindows(reader, sessions, stored, terms, selection, longs_as_text)
    start, end = window_columns(codec, key.at)
    terms = compile_window_range(start, end, question.low, question.high, is_overlap=is_overlap)
    order = compile_order(start.type)
    assert order is not None, "times have an order"
    rows = RowMaker(
        reader,
        KeyPrefix({}, _is_own(key, row), None, None),
        terms,
        (),
        None,
        selection,
        longs_as_text,
        only_counts=False,
        order=RowOrder(((start, order),), None, is_reversed=False),
    )
    expiry = reader.store.window_expiry
    assert expiry is not None, "as values are read"
    return TimeWindows(rows, codec.names[key.at], key.at, expiry)


def _parsed(key: WindowKey, asked: WindowsOf) -> Row:
    try:
        return key.codec.parse_json(list(asked.key))
    except BadKeyError as error:
        raise BadBoundError(error.what, where=error.where, fix=error.fix) from None


def _is_own(key: WindowKey, row: Row) -> Callable[[Row], bool]:
    """Return whether a key of the store is that key with a window."""
    at, wanted = key.at or 0, key.codec.encode(row)

    def is_own(stored: Row) -> bool:
        # By bytes, because NaN is not equal to itself.
        return stored[at] is not None and key.codec.encode(key.without_window(stored)) == wanted

    return is_own


def _printed(members: Mapping[str, object], expired: bool | None, selection: Selection) -> bytes | None:
    """Print a window; None for one that is left out."""
    if expired and not selection.include_expired:
        return None
    start, end = members["start"], members["end"]
    rest = {name: value for name, value in members.items() if name not in ("start", "end")}
    return orjson.dumps({"start": start, "end": end, "state": _STATES[expired], **rest})


def _longs_as_text(row: bytes) -> bytes:
    printed = orjson.loads(row)
    return orjson.dumps({name: numbers_as_text(each) for name, each in printed.items()})


def _stamped(view: TaskView, expiry: Expiry) -> Stamp:
    """Return the stamp of a version, with the moments that tell open, closed and evicted windows apart."""
    moments = {"closed_before": view.next_watermark_ms, "evicted_before": view.watermark_ms}
    shown = {name: ms * 1000 if ms and expiry.is_watermarked else None for name, ms in moments.items()}
    return {**stamp_of(view), **{name: utc_text(us) for name, us in shown.items()}}
