"""The rows of a scan as Arrow record batches: from what was printed, in short steps."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Generator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import orjson

from understudy_node.stores.arrow_schema import arrow_type, batch_message
from understudy_node.stores.export_columns import PROBLEM, ExportColumn, ExportColumns
from understudy_shared.reads.columns import walk
from understudy_shared.spark import temporal
from understudy_shared.spark.names import unique_names
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VoidType,
)

BATCH_ROWS: Final = 1_024
"""Number of rows of a record batch."""

ROWS_AT_ONCE: Final = 64
"""Number of rows that are parsed in one step."""

Convert = Callable[[Any], object]


class _UnfitError(ValueError):
    """A value that its Arrow type cannot hold."""


class ArrowRows:
    """The record batches of a part. A value that Arrow cannot hold is null, and the row has a problem."""

    def __init__(self, columns: ExportColumns, schema: Any) -> None:
        self._columns = columns
        self._schema = schema
        self._converts = [converter(each.type) for each in columns.columns]
        self._rows: list[bytes] = []
        self._messages: list[bytes] = []
        self.add = self._rows.append

    def finish(self) -> Generator[None, None, None]:
        """See `Gathered`."""
        for start in range(0, len(self._rows), BATCH_ROWS):
            printed: list[Mapping[str, Any]] = []
            for at in range(start, min(start + BATCH_ROWS, len(self._rows)), ROWS_AT_ONCE):
                printed += map(orjson.loads, self._rows[at : min(at + ROWS_AT_ONCE, start + BATCH_ROWS)])
                yield
            self._messages.append((yield from self._batch(printed)))

    def payload(self) -> bytes:
        """See `Gathered`."""
        return b"".join(self._messages)

    def _batch(self, rows: Sequence[Mapping[str, Any]]) -> Generator[None, None, bytes]:
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
        return batch_message(pa.record_batch(self._placed(arrays), schema=self._schema))

    def _placed(self, arrays: Mapping[tuple[str, ...], Any]) -> list[Any]:
        """Return the arrays of the schema's columns."""
        import pyarrow as pa  # noqa: PLC0415

        if self._columns.is_flat:
            return [arrays[each.path] for each in self._columns.columns]
        placed = []
        for field in self._schema:
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


def converter(spark_type: SparkType) -> Convert:
    """Return a function from a printed value to one of which pyarrow makes an array; nulls do not come to it."""
    match spark_type:
        case StructType(fields):
            names = unique_names(each.name for each in fields)
            inner = [(name, _or_null(each.type)) for name, each in zip(names, fields, strict=True)]
            return lambda value: {name: convert(value.get(name)) for name, convert in inner}
        case ArrayType(element):
            of_element = _or_null(element)
            return lambda value: [of_element(each) for each in value]
        case MapType(key, value_type):
            of_key, of_value = _or_null(key), _or_null(value_type)
            return lambda value: [
                (of_key(name), of_value(each)) for name, each in (value.items() if isinstance(value, dict) else value)
            ]
        case BooleanType() | IntegralType() | VoidType():
            return lambda value: value
        case FloatType() | DoubleType():
            return float
        case DecimalType():
            return Decimal
        case StringType():
            return _text
        case BinaryType():
            return b64decode
        case _:
            return _PARSERS.get(type(spark_type), _text)


def _or_null(spark_type: SparkType) -> Convert:
    convert = converter(spark_type)
    return lambda value: None if value is None else convert(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _UnfitError("it is not UTF-8")
    return value


_PARSERS: Final[Mapping[type[SparkType], Convert]] = {
    DateType: temporal.parse_date,
    TimestampType: temporal.parse_timestamp,
    TimestampNtzType: temporal.parse_timestamp_ntz,
    TimeType: temporal.parse_time,
    DayTimeIntervalType: temporal.parse_day_time,
}
