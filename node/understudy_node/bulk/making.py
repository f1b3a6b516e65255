"""Makes a part in the process for bulk parts: column by column where the store allows it, else row by row."""

from __future__ import annotations

from itertools import count
from typing import Final

from understudy_node.bulk.batches import arrow_batches
from understudy_node.bulk.cells import UnfitRowsError
from understudy_node.bulk.fast_part import Form, HasLeft, PartCancelledError, fast_part, stays
from understudy_node.bulk.lines import CsvLines, NdjsonForm
from understudy_node.bulk.table import Projection, table_of
from understudy_node.replica.readings import Reading
from understudy_node.stores.bulk_parts import BulkQuestion, MadePart, gathered_rows
from understudy_node.stores.scanning import scan_part
from understudy_shared.reads.arrow_batches import arrow_schema
from understudy_shared.reads.export_columns import ExportColumns
from understudy_shared.reads.export_format import ExportFormat
from understudy_shared.reads.scan_page import Place, Room

STEPS_AT_ONCE: Final = 64
"""Number of rows between two looks whether the reader has left."""


def make_part(asked: BulkQuestion, reading: Reading, place: Place, room: Room, has_left: HasLeft = stays) -> MadePart:
    """Return the part that is asked for. Raises PartCancelledError."""
    table = table_of(asked.maker, asked.columns)
    form = None if table is None else form_of(asked.format, table, asked.columns, asked.maker.longs_as_text)
    if table is not None and form is not None:
        view = reading.view.stores[asked.maker.reader.store.store_name]
        try:
            return fast_part(table, form, view, place.after, room, has_left)
        except UnfitRowsError:
            pass  # row by row it is seen which row is damaged, and what of it
    return row_by_row(asked, reading, place, room, has_left)


def form_of(form: ExportFormat, table: Projection, columns: ExportColumns, longs_as_text: bool) -> Form | None:
    """Return the form in which a table is printed; None where it has columns that this form takes value by value."""
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
