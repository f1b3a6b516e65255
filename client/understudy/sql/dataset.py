"""A store as a `pyarrow.dataset.Dataset`, which DuckDB hands columns and a filter. It imports pyarrow.

Of the interface DuckDB uses `schema`, `scanner(columns=, filter=)`, and of the scanner `projected_schema` and
`to_reader()`. Rows are read page by page as DuckDB takes them: pyarrow's own scanner reads ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from understudy.sql.exact import Filter
from understudy.sql.narrowing import narrowed
from understudy.sql.reads import Reads, Rows
from understudy.sql.table_columns import Table
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.export.arrow_batches import METADATA, ArrowBatches, arrow_schema
from understudy_shared.questions.export.columns import ExportColumns


class StoreDataset(ds.Dataset):  # type: ignore[misc]
    """A table for one statement, whose rows come from its reads."""

    def __init__(self, table: Table, reads: Reads) -> None:
        self._table, self._reads = table, reads
        self._schema = _schema(table, table.of(table.column_names()))
        self.open: list[Iterator[pa.RecordBatch]] = []
        """The batches of each scan: what DuckDB does not read to the end is closed with the statement."""

        self.unread: UnderstudyError | None = None
        """The reason for which a filter was not taken."""

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: object) -> Scan:  # noqa: A002
        """Return a scan of these columns, and of the rows that the filter matches."""
        wanted = self._schema.names if columns is None else list(columns)
        try:
            found = None if filter is None else Filter(filter, self._schema)
        except UnderstudyError as error:
            self.unread = error
            raise
        batches = self._batches(wanted, found)
        self.open.append(batches)
        return Scan(pa.schema([self._schema.field(each) for each in wanted]), batches)

    def _batches(self, wanted: Sequence[str], found: Filter | None) -> Iterator[pa.RecordBatch]:
        columns = self._table.of([*wanted, *(found.columns if found else ())])
        access = narrowed(found.predicate if found else None, self._table, found.names if found else ())
        batches = ArrowBatches(columns, _schema(self._table, columns))
        for rows in self._reads.pages(self._table, access, self._table.fields(columns)):
            batch = _batch(batches, rows) if isinstance(rows, Sequence) else _placed(rows, columns, batches.schema)
            yield (batch if found is None else _filtered(batch, found.expression)).select(wanted)


class Scan:
    """A scan that DuckDB reads."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the reader of its batches."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


def _schema(table: Table, columns: ExportColumns) -> pa.Schema:
    return arrow_schema(columns, {"store": table.store})


def _batch(batches: ArrowBatches, rows: Rows) -> pa.RecordBatch:
    steps = batches.steps(rows)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _placed(batch: pa.RecordBatch, columns: ExportColumns, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch of an export, which has those of key, value and result behind these where two have
    one name.
    """
    is_flat = orjson.loads(batch.schema.metadata[METADATA])["is_flat"]

    def found(path: Sequence[str]) -> pa.Array:
        if is_flat or len(path) == 1:
            return batch.column(path[-1])
        return batch.column(path[0]).field(path[1])

    return pa.record_batch([found(each.path) for each in columns.columns], schema=schema)


def _filtered(batch: pa.RecordBatch, expression: pc.Expression) -> pa.RecordBatch:
    return batch.filter(expression)
