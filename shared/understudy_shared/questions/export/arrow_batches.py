"""The rows of a scan as Arrow record batches: from what was printed, in short steps. pyarrow is imported by the first
use.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from understudy_shared.questions.export.columns import PROBLEM, ExportColumn, ExportColumns
from understudy_shared.reads.columns import walk
from understudy_shared.spark.arrow_types import arrow_type
from understudy_shared.spark.arrow_values import Convert, converter

if TYPE_CHECKING:
    import pyarrow as pa

METADATA: Final = b"understudy"
"""The key of our metadata, whose value is JSON: of a schema the version, of an empty batch a cursor, or the end."""


def arrow_schema(columns: ExportColumns, metadata: Mapping[str, object]) -> pa.Schema:
    """Return the schema of an export. `metadata` says which version of which store it is. A column of a flat table may
    be named as a part is, so the metadata says which of the two it is.
    """
    import pyarrow as pa  # noqa: PLC0415

    found = [pa.field(each.name, arrow_type(each.type)) for each in columns.schema().fields]
    return pa.schema(found, {METADATA: orjson.dumps({**metadata, "is_flat": columns.is_flat})})


class ArrowBatches:
    """A maker of record batches. A value that Arrow cannot hold is null, and the row has a problem."""

    def __init__(self, columns: ExportColumns, schema: pa.Schema) -> None:
        self._columns = columns
        self.schema = schema
        self._converts = [converter(each.type) for each in columns.columns]

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> Generator[None, None, pa.RecordBatch]:
        """Return the batch of these rows; pause between columns."""
        import pyarrow as pa  # noqa: PLC0415

        arrays: dict[tuple[str, ...], Any] = {}
        problems: dict[int, str] = {}
        for column, convert in zip(self._columns.columns, self._converts, strict=True):
            if column.path != (PROBLEM,):
                values = _converted(column, convert, rows, problems)
                arrays[column.path] = pa.array(values, arrow_type(column.type))
                yield
        said = [_problem(row, problems.get(at)) for at, row in enumerate(rows)]
        arrays[PROBLEM,] = pa.array(said, pa.string())
        return pa.record_batch(self._placed(arrays), schema=self.schema)

    def _placed(self, arrays: Mapping[tuple[str, ...], Any]) -> list[Any]:
        """Return the arrays of the schema's columns."""
        import pyarrow as pa  # noqa: PLC0415

        if self._columns.is_flat:
            return [arrays[each.path] for each in self._columns.columns]
        placed = []
        for field in self.schema:
            inner = [each.path for each in self._columns.columns if len(each.path) > 1 and each.path[0] == field.name]
            placed.append(
                pa.StructArray.from_arrays([arrays[path] for path in inner], fields=list(field.type))
                if inner
                else arrays[field.name,]
            )
        return placed


def _converted(
    column: ExportColumn, convert: Convert, rows: Sequence[Mapping[str, Any]], problems: dict[int, str]
) -> list[object]:
    """Return a column of values; note in `problems` which row has one that does not fit."""
    values: list[object] = []
    for at, row in enumerate(rows):
        value = walk(row, column.path)
        try:
            values.append(None if value is None else convert(value))
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            values.append(None)
            problems[at] = f"Arrow cannot hold {column.name}: {error}"
    return values


def _problem(row: Mapping[str, Any], unfit: str | None) -> str | None:
    said = row.get(PROBLEM)
    if said is None and unfit is not None:
        said = {"type": "unfit-for-arrow", "title": unfit}
    return None if said is None else orjson.dumps(said).decode()
