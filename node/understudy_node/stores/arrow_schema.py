"""The Arrow schema of an export, and the records of a stream beside its rows. pyarrow is imported by the first use.

An Arrow stream of an export is: the schema, record batches, and empty record batches whose metadata says where the
stream can be resumed, and at its end how many rows there were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import orjson

from understudy_node.stores.export_columns import ExportColumns
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.spark.names import unique_names
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    LongType,
    MapType,
    ShortType,
    SparkType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VoidType,
)

if TYPE_CHECKING:
    import pyarrow as pa

METADATA: Final = b"understudy"
"""The key of our metadata, whose value is JSON: of a schema the version, of an empty batch a cursor, or the end."""

MAX_PRECISION: Final = 38


def require_pyarrow() -> None:
    """Import pyarrow. Raises a bad-bound problem where it is not installed."""
    try:
        import pyarrow  # noqa: F401, PLC0415
    except ImportError:
        raise ProblemError(
            Problem(
                ProblemType.BAD_BOUND,
                "this service cannot write Arrow: the package pyarrow is not installed on its nodes",
                where="format",
                fix="Ask for format=ndjson or format=csv; or install understudy[arrow] for the nodes",
            )
        ) from None


def arrow_schema(columns: ExportColumns, metadata: Mapping[str, object]) -> pa.Schema:
    """Return the schema of an export. `metadata` says which version of which store it is. A column of a flat table may
    be named as a part is, so the metadata says which of the two it is.
    """
    import pyarrow as pa  # noqa: PLC0415

    found = [pa.field(each.name, arrow_type(each.type)) for each in columns.schema().fields]
    return pa.schema(found, {METADATA: orjson.dumps({**metadata, "is_flat": columns.is_flat})})


def arrow_type(spark_type: SparkType) -> pa.DataType:
    """Return the Arrow type of a column. Intervals of months are ISO 8601 texts, as answers have them."""
    import pyarrow as pa  # noqa: PLC0415

    match spark_type:
        case DecimalType(precision, scale):
            return pa.decimal128(min(precision, MAX_PRECISION), scale)
        case ArrayType(element):
            return pa.list_(arrow_type(element))
        case MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructType(fields):
            names = unique_names(each.name for each in fields)
            return pa.struct([(name, arrow_type(each.type)) for name, each in zip(names, fields, strict=True)])
        case _:
            make = _scalars().get(type(spark_type))
            return pa.string() if make is None else make()


@cache
def _scalars() -> Mapping[type[SparkType], Callable[[], Any]]:
    import pyarrow as pa  # noqa: PLC0415

    return {
        VoidType: pa.null,
        BooleanType: pa.bool_,
        ByteType: pa.int8,
        ShortType: pa.int16,
        IntType: pa.int32,
        LongType: pa.int64,
        FloatType: pa.float32,
        DoubleType: pa.float64,
        BinaryType: pa.binary,
        DateType: pa.date32,
        TimestampType: lambda: pa.timestamp("us", tz="UTC"),
        TimestampNtzType: lambda: pa.timestamp("us"),
        TimeType: lambda: pa.time64("ns"),
        DayTimeIntervalType: lambda: pa.duration("us"),
    }


def schema_message(schema: pa.Schema) -> bytes:
    """Return the message that begins a stream."""
    return bytes(schema.serialize())


def shape_of(columns: ExportColumns) -> str:
    """Return the digest of names and types: parts of two nodes must agree in it."""
    said = [(each.name, each.type.name) for each in columns.columns]
    return blake2b(orjson.dumps(said), digest_size=8).hexdigest()


def batch_message(batch: pa.RecordBatch) -> bytes:
    """Return the message of a record batch."""
    return bytes(batch.serialize())


def record_message(schema: pa.Schema, members: Mapping[str, object]) -> bytes:
    """Return the message of an empty record batch that says something by its metadata."""
    import pyarrow as pa  # noqa: PLC0415

    empty = pa.record_batch([pa.array([], each.type) for each in schema], schema=schema)
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)  # it writes the schema first, with the first batch
    writer.write_batch(empty, custom_metadata={METADATA: orjson.dumps(members)})
    return bytes(sink.getvalue())[schema.serialize().size :]


END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The bytes behind the last message of a whole stream."""
