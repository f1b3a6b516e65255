"""The rows of a scan as Arrow, pandas and Polars, with the types of an export. Packages are imported when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from understudy.typed.columns import read_entry
from understudy_shared.base.extras import PACKAGE, MissingExtraError
from understudy_shared.reads.arrow_batches import ArrowBatches, arrow_schema

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa

BATCH_ROWS: Final = 8_192
"""Number of rows of a record batch."""

Rows = Iterable[Mapping[str, Any]]
"""Rows as a scan prints them: `key` with `value` and `result`, or with the list of what the key has."""


class ArrowRows:
    """Rows that give themselves as an Arrow stream, batch by batch: polars, pandas, DuckDB and pyarrow take it."""

    def __init__(self, schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> None:
        """Take a store's entry in `GET /v1/stores`, rows as a scan prints them, and the `fields` of that scan.

        Raises BadBoundError for a name that is no column.
        """
        entry = read_entry(schema)
        self._store = entry.store
        self._columns = entry.exported().columns(None if fields is None else entry.named().by_part(fields))
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the stream as the Arrow PyCapsule interface has it."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the batches. Raises MissingExtraError without pyarrow."""
        pyarrow = _imported("pyarrow", "arrow")
        schema = arrow_schema(self._columns, {"store": self._store})
        return pyarrow.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        batches = ArrowBatches(self._columns, schema)
        rows = iter(self._rows)
        while some := list(islice(rows, BATCH_ROWS)):
            steps = batches.steps(some)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    yield end.value
                    break


def to_arrow(schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> pa.Table:
    """Return rows as a table of pyarrow. A value that Arrow cannot hold is null, and its row has a `problem`."""
    return ArrowRows(schema, rows, fields).reader().read_all()


def to_pandas(schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> pd.DataFrame:
    """Return rows as a data frame of pandas, with Arrow's types: an integer that may be null stays an integer."""
    pandas = _imported("pandas", "pandas")
    return to_arrow(schema, rows, fields).to_pandas(types_mapper=pandas.ArrowDtype)


def to_polars(schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> Any:
    """Return rows as a data frame of Polars."""
    polars = _imported("polars", "polars")
    return polars.DataFrame(ArrowRows(schema, rows, fields))


def _imported(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        what = f"{package} is not installed"
        raise MissingExtraError(what, where=f"{PACKAGE}[{extra}]", extras=extra) from None
