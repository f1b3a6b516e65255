"""Timers by the time at which they fire: one row for each, in the order of time, then of stored keys.

Spark stores each timer twice: by its grouping key, and by its time, in bytes that sort as times do. Where records are
Avro, the first is passed over instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from time import monotonic
from typing import Final, cast

import orjson

from understudy_node.replica.readings import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finding import FindingReader
from understudy_node.stores.lookup import StoreReader
from understudy_node.stores.ordered_scanning import TOO_MANY, FirstRanks, RankedPart
from understudy_node.stores.scan_rows import RowMaker, longs_as_text, row_maker
from understudy_node.stores.scanning import stamp_of
from understudy_node.stores.state_variables import Timers
from understudy_node.stores.timer_table import Timer, TimesTable
from understudy_shared.base.errors import BadKeyError
from understudy_shared.base.printable import clipped
from understudy_shared.http.problems import ProblemError
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.scan_page import PartPage, Place, Room
from understudy_shared.reads.scan_question import ScanQuestion
from understudy_shared.reads.selection import Selection
from understudy_shared.spark.json_values import compile_segment_parser
from understudy_shared.spark.temporal import timestamp_text
from understudy_shared.spark.types import TimestampType

MAX_COUNTED: Final = 1_000_000
"""Limit on the timers that are counted where they are passed over."""

_LEAST_MS: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class TimersByTime:
    """The timers of a store in a range of milliseconds. `rows` says which keys are wanted. `times` is None where all
    timers of a version have to be passed over, which `every` yields.
    """

    rows: RowMaker
    low_ms: int
    high_ms: int | None
    times: TimesTable | None
    every: Callable[[TaskView], Iterator[Timer]]

    @property
    def reader(self) -> StoreReader:
        return self.rows.reader

    @property
    def is_sought(self) -> bool:
        return False

    def part(
        self, reading: Reading, place: Place, room: Room, has_left: Callable[[], bool]
    ) -> Generator[None, None, PartPage]:
        """Read the first timers of a partition behind a rank, or count them."""
        made = RankedPart(room, place.after)
        if self.times is None:
            wanted: Iterable[Timer] = yield from self._passed(reading.view, made, has_left)
        else:
            wanted = self.times.between(reading.view, self.low_ms, self.high_ms, place.after)
        for timer in wanted:
            if self.times is not None:
                if made.looked_at and (monotonic() >= room.until_s or has_left()):
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

    def _passed(
        self, view: TaskView, made: RankedPart, has_left: Callable[[], bool]
    ) -> Generator[None, None, list[Timer]]:
        """Return the first timers that are wanted, of all."""
        first = FirstRanks(made.room.rows or MAX_COUNTED, made.after)
        found: dict[bytes, Timer] = {}
        for timer in self.every(view):
            if made.looked_at and (monotonic() >= made.room.until_s or has_left()):
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
    return TimersByTime(rows, _LEAST_MS if low is None else low, high, timers.times, timers.every)


def _milliseconds(name: str, text: str | None) -> int | None:
    """Return the first millisecond at or behind a moment."""
    if text is None:
        return None
    try:
        return -(-cast(int, compile_segment_parser(TimestampType(), "timers")(text)) // 1000)
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"{name}, {error.where}", fix=error.fix) from None
