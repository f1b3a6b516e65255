"""The process that makes bulk parts for a node (`python -m understudy_node.questions.export.bulk.worker NODE`).

It has no port and no timer: it answers what comes through stdin, one part after another, and ends with the pipe. It
takes the processor only when lookups leave it: it starts with a lower priority.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import BinaryIO, Final

from understudy_node.engine.base import Base, EmptyBase, RowCache
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.engine.view import Spill, StateView, Tier
from understudy_node.questions.export.bulk.forms import CsvLines, NdjsonForm, arrow_batches
from understudy_node.questions.export.bulk.part import (
    Form,
    HasLeft,
    Projection,
    UnfitRowsError,
    fast_part,
    stays,
    table_of,
)
from understudy_node.questions.export.bulk.pipe import (
    AskedPart,
    Declined,
    Dropped,
    Forget,
    GenerationStores,
    Made,
    OpenBase,
    OpenSpill,
    PartCancelledError,
    TierChanges,
    ViewParts,
    encoded,
    read_message,
)
from understudy_node.questions.export.parts import BulkQuestion, MadePart, export_columns, gathered_rows
from understudy_node.questions.scan.parts import scan_part
from understudy_node.questions.scan.rows import row_maker
from understudy_node.replica.local_bases import open_base, read_base
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader, store_readers
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.processes import die_with
from understudy_shared.base.words import StoreName
from understudy_shared.questions.export.columns import ExportColumns, arrow_schema
from understudy_shared.questions.scan.page import Place, Room
from understudy_shared.reads.export_format import ExportFormat

PRIORITY: Final = 10
"""Niceness that is added: on a busy machine lookups get nine tenths."""

CACHE_BYTES: Final = 16 * 1024 * 1024
"""Capacity of the block cache: a scan reads each block once."""

Pieces = tuple[bytes | memoryview, ...]

MAX_STORES: Final = 4
"""Number of generations whose readers are kept."""


STEPS_AT_ONCE: Final = 64
"""Number of rows between two checks whether the reader has left."""


def make_part(asked: BulkQuestion, reading: Reading, place: Place, room: Room, has_left: HasLeft = stays) -> MadePart:
    """Return the part that is asked for. Raises PartCancelledError."""
    table = table_of(asked.maker, asked.columns)
    form = None if table is None else form_of(asked.format, table, asked.columns, asked.maker.longs_as_text)
    if table is not None and form is not None:
        view = reading.view.stores[asked.maker.reader.store.store_name]
        try:
            return fast_part(table, form, view, place.after, room, has_left)
        except UnfitRowsError:
            pass  # reading row by row finds the damaged row, and what is wrong with it
    return row_by_row(asked, reading, place, room, has_left)


def form_of(form: ExportFormat, table: Projection, columns: ExportColumns, longs_as_text: bool) -> Form | None:
    """Return the form that prints a table; None if the form cannot print some of its columns at once."""
    match form:
        case ExportFormat.NDJSON:
            return NdjsonForm(table, longs_as_text=longs_as_text)
        case ExportFormat.CSV:
            return CsvLines(table, longs_as_text=longs_as_text)
        case ExportFormat.ARROW:
            return arrow_batches(table, columns)


def row_by_row(asked: BulkQuestion, reading: Reading, place: Place, room: Room, has_left: HasLeft = stays) -> MadePart:
    """Return the same part as a node makes it on its loop. Raises PartCancelledError."""
    schema = arrow_schema(asked.columns, {}) if asked.format is ExportFormat.ARROW else None
    steps = scan_part(asked.maker, reading, place, room, rows=gathered_rows(asked, schema))
    for step in count():
        if step % STEPS_AT_ONCE == 0 and has_left():
            break
        try:
            next(steps)
        except StopIteration as done:
            page = done.value
            return MadePart((page.rows,), page.found, page.looked_at, page.after, page.is_end)
    raise PartCancelledError


class _GoneError(Exception):
    """A layer is missing."""


@dataclass(slots=True)
class Process:
    """The layers and the readers that this process has."""

    has_left: HasLeft = stays
    """Whether the reader of the part that is being made has left."""
    cache: BlockCache = field(default_factory=lambda: BlockCache(CACHE_BYTES))
    layers: dict[int, Base | Spill | Tier] = field(default_factory=dict)
    changes: dict[int, dict[bytes, bytes | None]] = field(default_factory=dict)
    """Tiers that are not whole yet."""
    readers: dict[int, dict[StoreName, StoreReader]] = field(default_factory=dict)
    unopened: dict[int, str] = field(default_factory=dict)
    """Reasons why layers could not be opened, by number."""

    def take(self, message: object) -> tuple[Made | Declined | Dropped, Pieces] | None:
        """Do what a message says; return the answer to one that has an answer."""
        match message:
            case AskedPart():
                return self._part(message)
            case GenerationStores():
                self._add_stores(message)
            case OpenBase() | OpenSpill():
                self._open(message)
            case TierChanges():
                self._add_changes(message)
            case Forget():
                for number in message.numbers:
                    self.layers.pop(number, None)
                    self.unopened.pop(number, None)
        return None

    def _add_stores(self, message: GenerationStores) -> None:
        while len(self.readers) >= MAX_STORES:
            del self.readers[next(iter(self.readers))]
        self.readers[message.number] = store_readers(**message.made_of, replicas={}, rows=RowCache(0))

    def _open(self, message: OpenBase | OpenSpill) -> None:
        try:
            self.layers[message.number] = _opened(message, self.cache)
        except (UnderstudyError, OSError) as error:
            self.unopened[message.number] = str(error)

    def _add_changes(self, message: TierChanges) -> None:
        changes = self.changes.setdefault(message.number, {})
        changes.update(marshal.loads(message.pairs))  # noqa: S302  # of the process that started this one
        if message.is_last:
            del self.changes[message.number]
            self.layers[message.number] = Tier(
                changes, first_version=message.first_version, last_version=message.last_version
            )

    def _part(self, asked: AskedPart) -> tuple[Made | Declined | Dropped, Pieces]:
        try:
            reader = self.readers[asked.stores][StoreName(asked.store)]
            views = {name: self._view(parts) for name, parts in asked.views.items()}
            # The time for sorting the keys of a base does not count as the part's.
            views[reader.store.store_name].prepare_scan()
            reading = Reading(TaskView(stores=views, **asked.task), None, b"")  # type: ignore[arg-type]  # no lag
            room = Room(asked.rows, asked.bytes, monotonic() + asked.budget_ms / 1000)
            made = make_part(
                _question(reader, asked), reading, Place(asked.partition, asked.after), room, self.has_left
            )
        except PartCancelledError:
            return Dropped(), ()
        except Exception as error:  # The node makes this part itself, and reports what is wrong.
            return Declined(f"{type(error).__name__}: {error}"), ()
        size_bytes = sum(map(len, made.pieces))
        return Made(*made[1:], size_bytes), made.pieces

    def _view(self, parts: ViewParts) -> StateView:
        base, spill = self._layer(parts.base), None if parts.spill is None else self._layer(parts.spill)
        tiers = tuple(tier for tier in map(self._layer, parts.tiers) if isinstance(tier, Tier))
        assert not isinstance(base, Tier | Spill)
        assert spill is None or isinstance(spill, Spill)
        return StateView(base, version=parts.version, base_version=parts.base_version, tiers=tiers, spill=spill)

    def _layer(self, number: int) -> Base | Spill | Tier:
        found = self.layers.get(number)
        if found is None:
            raise _GoneError(self.unopened.get(number, f"layer {number} is not there"))
        return found


def _question(reader: StoreReader, asked: AskedPart) -> BulkQuestion:
    maker = row_maker(reader, asked.question, asked.selection, longs_as_text=asked.longs_as_text)
    columns = export_columns(reader.store, maker.fields)
    return BulkQuestion(maker, asked.question, ExportFormat(asked.format), columns)


def _opened(message: OpenBase | OpenSpill, cache: BlockCache) -> Base | Spill:
    directory = Path(message.directory)
    if isinstance(message, OpenSpill):
        return Spill.open(directory, cache=cache)
    if not message.directory:
        return EmptyBase()
    local = read_base(directory)
    if local is None:
        raise FileNotFoundError(f"{directory} is not a whole base")
    return open_base(local, cache)


def main() -> None:
    die_with(int(sys.argv[1]))
    os.nice(PRIORITY)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0), answers)


def serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the pipe ends."""
    arrivals = select.poll()
    arrivals.register(orders, select.POLLIN)
    # While a part is being made, the node sends no message but the order to drop it.
    process = Process(has_left=lambda: bool(arrivals.poll(0)))
    while (message := read_message(orders)) is not None:
        answer = process.take(message)
        if answer is not None:
            head, pieces = answer
            for piece in (encoded(head), *pieces):
                _write(answers, piece)


def _write(out: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


if __name__ == "__main__":
    main()
