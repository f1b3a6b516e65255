"""The makers of parts of pages: chosen by what a question asks for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol, cast

from understudy_node.replica.readings import Reading
from understudy_node.stores.finding import FindingReader
from understudy_node.stores.lookup import StoreReader
from understudy_node.stores.ordered_scanning import ordered_part
from understudy_node.stores.scan_rows import RowMaker, row_maker
from understudy_node.stores.scanning import scan_part
from understudy_node.stores.timer_rows import timers_by_time
from understudy_node.stores.window_rows import window_maker
from understudy_shared.base.words import StoreKind
from understudy_shared.reads.scan_page import PartPage, Place, Room
from understudy_shared.reads.scan_prefix import KeyPrefix
from understudy_shared.reads.scan_question import ScanQuestion
from understudy_shared.reads.selection import Selection


class PartMaker(Protocol):
    """The maker of the parts of one question from one store."""

    @property
    def reader(self) -> StoreReader:
        """The reader of the store."""

    @property
    def is_sought(self) -> bool:
        """Whether it asks for one key, which is looked up."""

    def part(
        self, reading: Reading, place: Place, room: Room, has_left: Callable[[], bool]
    ) -> Generator[None, None, PartPage]:
        """Read a partition from a place on, in short steps; see `scan_part`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The maker of parts with rows of keys."""

    maker: RowMaker

    @property
    def reader(self) -> StoreReader:
        return self.maker.reader

    @property
    def is_sought(self) -> bool:
        return self.maker.is_sought and self.maker.order is None

    def part(
        self, reading: Reading, place: Place, room: Room, has_left: Callable[[], bool]
    ) -> Generator[None, None, PartPage]:
        """See `PartMaker`."""
        read = scan_part if self.maker.order is None else ordered_part
        return read(self.maker, reading, place, room, has_left)


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
    return Rows(row_maker(reader, question, selection, longs_as_text=longs_as_text, prefix=prefix))
