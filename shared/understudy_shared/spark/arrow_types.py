"""The Arrow types of Spark's types, as exports and clients have them. pyarrow is imported by the first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

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

MAX_PRECISION: Final = 38


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
