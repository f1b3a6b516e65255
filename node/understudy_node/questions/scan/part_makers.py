"""The makers of parts of pages, chosen by what a question asks for: rows of keys, windows of a key, or timers in a
range.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from time import monotonic
from typing import Final, cast

import orjson

from understudy_node.questions.scan.parts import TOO_MANY, FirstRanks, RankedPart, ordered_part, scan_part, stamp_of
from understudy_node.questions.scan.rows import RowMaker, RowOrder, ScannedKey, longs_as_text, row_maker
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import Expiry
from understudy_node.stores.lookup import FindingReader, StoreReader
from understudy_node.stores.operator_state import Sessions
from understudy_node.stores.state_variables import Timer, Timers, TimesTable
from understudy_shared.base.errors import BadKeyError
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import StoreKind
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.lookup.windows import WindowKey, WindowsOf, window_columns, window_key
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.page import PartPage, Place, Room, Stamp
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.questions.scan.requests import KeyPrefix
from understudy_shared.questions.scan.where import OrderBytes, Term, compile_order, compile_window_range
from understudy_shared.reads.bounds import BadBoundError, Selection
from understudy_shared.reads.columns import StoreColumn
from understudy_shared.spark.json_values import compile_segment_parser
from understudy_shared.spark.key_codec import Row
from understudy_shared.spark.temporal import timestamp_text, utc_text
from understudy_shared.spark.types import LongType, TimestampType

MAX_COUNTED: Final = 1_000_000
"""Limit on the timers that are counted where they are passed over."""

_LEAST_MS: Final = -(2**63)


_STATES: Final = {True: "closed", False: "open", None: None}
_order_of_starts = cast(OrderBytes, compile_order(LongType()))


@dataclass(frozen=True, slots=True)
class PartMaker(ABC):
    """The maker of the parts of one question from one store."""

    reader: StoreReader

    @property
    def is_sought(self) -> bool:
        """Whether it asks for one key, which is looked up."""
        return False

    @abstractmethod
    def part(self, reading: Reading, place: Place, room: Room, asker: Asker) -> Generator[None, None, PartPage]:
        """Read a partition from a place on, in short steps; see `scan_part`."""


@dataclass(frozen=True, slots=True)
class TimeWindows(PartMaker):
    """The windows of time of a key, in the order of their starts. They are keys of their own: `rows` finds and prints
    the keys that have them.
    """

    rows: RowMaker
    name: str
    at: int
    expiry: Expiry

    def part(self, reading: Reading, place: Place, room: Room, asker: Asker) -> Generator[None, None, PartPage]:
        """Read the first windows of a partition after a rank."""
        part = yield from ordered_part(self.rows, reading, place, room, asker, print_row=self._row)
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
class SessionWindows(PartMaker):
    """The sessions of a key, which is stored as `stored`, in the order of their starts. They are its elements."""

    sessions: Sessions
    stored: bytes
    terms: tuple[Term, ...]
    selection: Selection
    longs_as_text: bool

    @property
    def is_sought(self) -> bool:
        return True

    def part(self, reading: Reading, place: Place, room: Room, asker: Asker) -> Generator[None, None, PartPage]:
        """Read the first sessions after a rank: one seek."""
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
            if not made.take(rank, longs_as_text(row) if self.longs_as_text else row):
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
        start, end = (
            StoreColumn("key", (name,), (at,), sessions.start_type) for at, name in enumerate(("start", "end"))
        )
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
    return TimeWindows(reader, rows, codec.names[key.at], key.at, expiry)


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


def _stamped(view: TaskView, expiry: Expiry) -> Stamp:
    """Return the stamp of a version, with the moments that tell open, closed and evicted windows apart."""
    moments = {"closed_before": view.next_watermark_ms, "evicted_before": view.watermark_ms}
    shown = {name: ms * 1000 if ms and expiry.is_watermarked else None for name, ms in moments.items()}
    return {**stamp_of(view), **{name: utc_text(us) for name, us in shown.items()}}


@dataclass(frozen=True, slots=True)
class TimersByTime(PartMaker):
    """The timers of a store in a range of milliseconds, one row for each, in the order of time, then of stored keys.

    Spark stores each timer twice: by its grouping key, and by its time, in bytes that sort as times do. Where records
    are Avro, the first is passed over instead. `rows` says which keys are wanted. `times` is None where all
    timers of a version have to be passed over, which `every` yields.
    """

    rows: RowMaker
    low_ms: int
    high_ms: int | None
    times: TimesTable | None
    every: Callable[[TaskView], Iterator[Timer]]

    def part(self, reading: Reading, place: Place, room: Room, asker: Asker) -> Generator[None, None, PartPage]:
        """Read the first timers of a partition after a rank, or count them."""
        made = RankedPart(room, place.after)
        if self.times is None:
            wanted: Iterable[Timer] = yield from self._passed(reading.view, made, asker)
        else:
            wanted = self.times.between(reading.view, self.low_ms, self.high_ms, place.after)
        for timer in wanted:
            if self.times is not None:
                if made.looked_at and (monotonic() >= room.until_s or asker.is_gone):
                    made.stop()
                    break
                made.looked_at += 1
                yield
                if not self.rows.has_key(timer.key):
                    made.pass_over(timer.rank)
                    continue
            if not made.take(timer.rank, b"" if room.rows is None else self._row(timer)):
                made.looked_at -= self.times is not None  # the next page looks at it
                break
        view = reading.view
        return made.part(view, "filtered-pass" if self.times is None else "seek", stamp_of(view))

    def _passed(self, view: TaskView, made: RankedPart, asker: Asker) -> Generator[None, None, list[Timer]]:
        """Return the first timers that are wanted, by a pass over all timers."""
        first = FirstRanks(made.room.rows or MAX_COUNTED, made.after)
        found: dict[bytes, Timer] = {}
        for timer in self.every(view):
            if made.looked_at and (monotonic() >= made.room.until_s or asker.is_gone):
                raise ProblemError(TOO_MANY)
            made.looked_at += 1
            yield
            is_in_range = self.low_ms <= timer.time_ms and (self.high_ms is None or timer.time_ms < self.high_ms)
            if is_in_range and first.wants(timer.rank) and self.rows.has_key(timer.key):
                found[timer.rank] = timer
                out = first.add(timer.rank, b"")
                if out is not None:
                    del found[out]
        return sorted(found.values(), key=itemgetter(0))

    def _row(self, timer: Timer) -> bytes:
        codec = self.reader.store.codec
        time = timestamp_text(timer.time_ms * 1000)
        row = orjson.dumps({"key": codec.to_json(codec.encode(timer.key)), "timers": [time]})
        return longs_as_text(row) if self.rows.longs_as_text else row


def timers_by_time(reader: FindingReader, question: ScanQuestion, selection: Selection, *, longs: bool) -> TimersByTime:
    """Compile a question for the timers in a range of time. Raises BadBoundError."""
    if question.order is not None:
        what = "timers in a range come in the order of their times"
        raise BadBoundError(what, where="order", fix="Leave out order, or from and to")
    low, high = (_milliseconds(name, text) for name, text in (("from", question.low), ("to", question.high)))
    if low is not None and high is not None and low >= high:
        what = f"from={clipped(question.low)} is not before to={clipped(question.high)}, which is not in the range"
        raise BadBoundError(what, where="from", fix="Send the end of the range as to, a millisecond later at least")
    rows = row_maker(reader, replace(question, low=None, high=None), selection, longs_as_text=longs)
    timers = cast(Timers, reader.finder)
    return TimersByTime(reader, rows, _LEAST_MS if low is None else low, high, timers.times, timers.every)


def _milliseconds(name: str, text: str | None) -> int | None:
    """Return the first millisecond at or after a moment."""
    if text is None:
        return None
    try:
        return -(-cast(int, compile_segment_parser(TimestampType(), "timers")(text)) // 1000)
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"{name}, {error.where}", fix=error.fix) from None


@dataclass(frozen=True, slots=True)
class Rows(PartMaker):
    """The maker of parts with rows of keys."""

    maker: RowMaker

    @property
    def is_sought(self) -> bool:
        return self.maker.is_sought and self.maker.order is None

    def part(self, reading: Reading, place: Place, room: Room, asker: Asker) -> Generator[None, None, PartPage]:
        read = scan_part if self.maker.order is None else ordered_part
        return read(self.maker, reading, place, room, asker)


def part_maker(
    reader: StoreReader,
    question: ScanQuestion,
    selection: Selection,
    *,
    longs_as_text: bool,
    prefix: KeyPrefix | None = None,
) -> PartMaker:
    """Compile a question for a store; `prefix` is that of the question, where it was parsed before. Raises
    BadBoundError that names the member at fault.
    """
    if question.windows is not None:
        return window_maker(reader, question, question.windows, selection, longs_as_text=longs_as_text)
    if reader.store.kind is StoreKind.TIMERS and question.has_range:
        return timers_by_time(cast(FindingReader, reader), question, selection, longs=longs_as_text)
    return Rows(reader, row_maker(reader, question, selection, longs_as_text=longs_as_text, prefix=prefix))
