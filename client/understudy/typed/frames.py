"""The rows of a scan as Arrow, pandas and Polars, with the types of an export. Packages are imported when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from understudy.typed.columns import StoreEntry, read_entry
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import PACKAGE, MissingExtraError
from understudy_shared.questions.export.columns import METADATA, PROBLEM, ArrowBatches, ExportColumns, arrow_schema
from understudy_shared.reads.columns import walk

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa


class CutError(UnderstudyError):
    """A stream ended before its end."""


def arrow_records(source: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield each batch of a stream, with the record next to its rows: `cursor`, `end`, `error` or nothing.

    The last one has `end` or `error`. Raises CutError for a stream that ends without either.
    """
    import pyarrow as pa  # noqa: PLC0415

    try:
        reader = pa.ipc.open_stream(source)
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            said = {} if metadata is None else said_by(metadata[METADATA])
            yield batch, said
            if "end" in said or "error" in said:
                return
    except StopIteration:
        raise CutError("the stream has no end record") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise CutError(f"the stream was cut: {error}") from None


def said_by(line: bytes) -> dict[str, Any]:
    """Parse a record. Raises CutError if it is not JSON."""
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        raise CutError("the stream has a line that is not JSON")
    return said


def require_rows(rows: int, end: Mapping[str, Any]) -> None:
    """Raise CutError where a stream has not as many rows as its end says."""
    if end.get("rows") != rows:
        raise CutError(f"the stream has {rows} rows, and its end record says {end.get('rows')}")


BATCH_ROWS: Final = 8_192
"""Number of rows of a record batch."""

Rows = Iterable[Mapping[str, Any]]
"""Rows as a scan prints them: `key` with `value` and `result`, or with the list of what the key has."""


class ArrowRows:
    """Rows that export an Arrow stream, batch by batch: polars, pandas, DuckDB and pyarrow take it."""

    def __init__(self, schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> None:
        """Take a store's entry in `GET /v1/stores`, rows as a scan prints them, and the `fields` of that scan.

        Raises BadBoundError for an unknown column.
        """
        entry = read_entry(schema)
        self._store = entry.store
        self._columns = _columns(entry, fields)
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the stream as the Arrow PyCapsule interface has it."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the batches. Raises MissingExtraError without pyarrow."""
        pyarrow = _imported("pyarrow")
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
    """Return rows as a table of pyarrow. A value that Arrow cannot hold is null, and its row has a `problem`: the table
    has that column only where a row has one.
    """
    return without_problem(ArrowRows(schema, rows, fields).reader().read_all())


def to_pandas(schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> pd.DataFrame:
    """Return rows as a data frame of pandas, with Arrow's types: an integer that may be null stays an integer."""
    require("pandas")
    return as_pandas(to_arrow(schema, rows, fields))


def to_polars(schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> Any:
    """Return rows as a data frame of Polars."""
    require("polars")
    return as_polars(to_arrow(schema, rows, fields))


def to_dicts(schema: Mapping[str, Any], rows: Rows, fields: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return rows as dicts by column, with JSON's values, and without any package."""
    columns, found = _columns(read_entry(schema), fields).columns, list(rows)
    if not any(PROBLEM in row for row in found):
        columns = tuple(each for each in columns if each.path != (PROBLEM,))
    return [{each.name: walk(row, each.path) for each in columns} for row in found]


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """Return a table as a data frame of pandas."""
    return table.to_pandas(types_mapper=_imported("pandas").ArrowDtype)


def as_polars(table: pa.Table) -> Any:
    """Return a table as a data frame of Polars."""
    return _imported("polars").DataFrame(table)


def without_problem(table: pa.Table) -> pa.Table:
    """Return a table without the column `problem`, unless a row has one."""
    at = table.schema.get_field_index(PROBLEM)
    is_unused = at >= 0 and table.column(at).null_count == table.num_rows
    return table.remove_column(at) if is_unused else table


class Exported(NamedTuple):
    """The outcome of an export in one stream: the batches up to `cursor` if it broke off, else all of them. `why` is
    None at its end; else the server's problem, or that the stream was cut.
    """

    batches: list[pa.RecordBatch]
    cursor: str | None
    why: Mapping[str, Any] | CutError | None


def read_export(data: bytes) -> Exported:
    """Read the bytes of an Arrow export that came, without copying them."""
    batches: list[pa.RecordBatch] = []
    placed, rows, cursor = 0, 0, None
    try:
        for batch, said in arrow_records(_imported("pyarrow").BufferReader(data)):
            batches.append(batch)
            rows += batch.num_rows
            if "cursor" in said:
                placed, cursor = len(batches), said["cursor"]
            elif "end" in said:
                require_rows(rows, said["end"])
                return Exported(batches, None, None)
            elif "error" in said:
                return Exported(batches[:placed], cursor, said["error"])
    except CutError as error:
        return Exported(batches[:placed], cursor, error)
    raise AssertionError("the last record of a stream says its end, or an error")


def table_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the table of the batches of an export."""
    return without_problem(
        _imported("pyarrow").Table.from_batches([each for each in batches if each.num_rows] or batches[:1])
    )


def require(*packages: str) -> None:
    """Raise MissingExtraError for a package that is not installed."""
    for package in packages:
        _imported(package)


def _columns(entry: StoreEntry, fields: Iterable[str] | None) -> ExportColumns:
    return entry.exported().columns(None if fields is None else entry.named().by_part(fields))


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        what, extra = f"{package} is not installed", _EXTRAS.get(package, package)
        raise MissingExtraError(what, where=f"{PACKAGE}[{extra}]", extras=extra) from None


_EXTRAS: Final = {"pyarrow": "arrow"}
"""The extras that bring packages, where those have another name."""
