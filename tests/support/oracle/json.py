"""The JSON that an answer must carry, from what Spark's reader returned: the HTTP rules, written a second time.

Nothing here uses this project's printers, so that a mistake in them is not made twice. Types are PySpark's; values are
those of `spark_oracle` (days and microseconds as numbers, structs as tuples).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

try:
    from pyspark.sql.types import TimestampNTZType
except ImportError:  # PySpark 3.2 has none
    TimestampNTZType = TimestampType  # type: ignore[misc,assignment]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def json_object(row: tuple[object, ...], struct_type: StructType) -> dict[str, object]:
    """A row as an object by column name, in the schema's order."""
    names = unique(struct_type.fieldNames())
    return {
        name: json_value(value, field.dataType)
        for name, value, field in zip(names, row, struct_type.fields, strict=True)
    }


def json_array(row: tuple[object, ...], struct_type: StructType) -> list[object]:
    """A row as an array in the schema's order: the exact form of a key."""
    return list(json_object(row, struct_type).values())


def json_value(value: object, data_type: DataType) -> object:
    if value is None:
        return None
    match data_type, value:
        case StructType(), tuple():
            return json_object(value, data_type)
        case ArrayType(), list():
            return [json_value(item, data_type.elementType) for item in value]
        case MapType(), list():
            pairs = [(json_value(key, data_type.keyType), json_value(of, data_type.valueType)) for key, of in value]
            return dict(pairs) if isinstance(data_type.keyType, StringType) else [list(pair) for pair in pairs]
        case ((DoubleType() | FloatType()), float()):
            return _number(value, data_type)
        case _, int() if isinstance(data_type, DateType | TimestampType | TimestampNTZType):
            return _moment(value, data_type)
        case BinaryType(), bytes():
            return base64.b64encode(value).decode()
        case DecimalType(), Decimal():
            assert value.as_tuple().exponent == -data_type.scale
            return f"{value:f}"
        case _, (bool() | int() | str()):
            return value
    raise AssertionError(f"no rule for {value!r} of {data_type}")


def path_segments(row: tuple[object, ...], struct_type: StructType) -> list[str] | None:
    """The friendly form of a key, before percent-encoding; None where only the exact form may hold it."""
    segments: list[str] = []
    for value, field in zip(row, struct_type.fields, strict=True):
        if isinstance(field.dataType, StructType) and field.dataType.fieldNames() == ["start", "end"]:
            assert isinstance(value, tuple)
            segments += [str(json_value(part, of.dataType)) for part, of in zip(value, field.dataType, strict=True)]
        elif value in (None, "", b"") or isinstance(value, tuple | list):
            return None
        else:
            printed = json_value(value, field.dataType)
            segments.append(printed if isinstance(printed, str) else json.dumps(printed))
    return segments or None


def as_text(value: object) -> str:
    """JSON as text that is equal for the same values in the same order only: 1 unlike 1.0, 0.0 unlike -0.0."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def unique(names: Sequence[str]) -> list[str]:
    """Repeated names get `_2`, `_3`, ...; none of the queries here has a column that ends like that by itself."""
    return [
        name if names.index(name) == place else f"{name}_{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def _moment(count: int, data_type: DataType) -> str:
    if isinstance(data_type, DateType):
        return (_EPOCH + timedelta(days=count)).date().isoformat()
    text = (_EPOCH + timedelta(microseconds=count)).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{text}Z" if isinstance(data_type, TimestampType) else text


def _number(value: float, data_type: DataType) -> object:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # A float's shortest digits are those that tell it from its neighbouring floats, not from neighbouring doubles.
    return float(str(np.float32(value))) if isinstance(data_type, FloatType) else value
