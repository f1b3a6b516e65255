"""Normalises grouping keys as Spark does before it stores them, so that equal keys have equal bytes.

Pure. -0.0 becomes 0.0, every NaN the canonical one, and the entries of a map are sorted by key; all at any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import cast

from understudy_shared.spark.types import (
    ArrayType,
    DoubleType,
    FloatType,
    MapType,
    SparkType,
    StringType,
    StructType,
)

Normaliser = Callable[[tuple[object, ...]], tuple[object, ...]]

_NAN = float("nan")


def compile_normaliser(struct_type: StructType) -> Normaliser | None:
    """Compile a function from row to normalised row; None, the usual case, when rows of the schema need no change."""
    return cast("Normaliser | None", _normaliser(struct_type))


def _normaliser(spark_type: SparkType) -> Callable[..., object] | None:
    """Return the function for non-null values of a type; None when they need no change."""
    match spark_type:
        case FloatType() | DoubleType():
            return _normal_float
        case StructType(fields):
            return _struct_normaliser([_normaliser(field.type) for field in fields])
        case ArrayType(element):
            inner = _normaliser(element)
            return None if inner is None else lambda values: [_apply(inner, value) for value in values]
        case MapType():
            return _map_normaliser(spark_type)
        case _:
            return None


def _normal_float(value: float) -> float:
    return value + 0.0 if value == value else _NAN  # noqa: PLR0124


def _struct_normaliser(inner: Sequence[Callable[..., object] | None]) -> Callable[..., object] | None:
    if not any(inner):
        return None
    return lambda values: tuple(_apply(function, value) for function, value in zip(inner, values, strict=True))


def _map_normaliser(map_type: MapType) -> Callable[..., object]:
    keys, values, order = _normaliser(map_type.key), _normaliser(map_type.value), _order_of(map_type.key)

    def normalise(pairs: Sequence[tuple[object, object]]) -> list[tuple[object, object]]:
        normal = [(_apply(keys, key), _apply(values, value)) for key, value in pairs]
        return [pair for _, pair in sorted(((order(pair[0]), pair) for pair in normal), key=itemgetter(0))]

    return normalise


def _apply(function: Callable[..., object] | None, value: object) -> object:
    return value if function is None or value is None else function(value)


def _order_of(spark_type: SparkType) -> Callable[..., object]:
    """Return a sort key in Spark's order: strings by their bytes, NaN last, null first inside structs and arrays."""
    match spark_type:
        case StringType():
            return lambda text: cast(str, text).encode("utf-8", "surrogateescape")
        case FloatType() | DoubleType():
            return lambda number: (number != number, number)  # noqa: PLR0124
        case StructType(fields):
            orders = [_order_of(field.type) for field in fields]
            return lambda values: [_nulls_first(order, value) for order, value in zip(orders, values, strict=True)]
        case ArrayType(element):
            order = _order_of(element)
            return lambda values: [_nulls_first(order, value) for value in values]
        case _:
            return lambda value: value


def _nulls_first(order: Callable[..., object], value: object) -> tuple[object, ...]:
    return () if value is None else (order(value),)
