"""Which columns the stores of an operator have: what looks otherwise is refused, because it would be read wrong.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from understudy_shared.spark.types import LongType, StructType, VoidType

EXPIRY: Final = "expiresAtMicros"
"""The one value column of `dropDuplicatesWithinWatermark`."""


def has_shape_of(operator_name: str, key: StructType, value: StructType) -> bool:
    """Whether a store with these columns is one that the operator writes."""
    fits = _SHAPES.get(operator_name)
    return fits is None or fits(key, value)


def _is_seen_set(key: StructType, value: StructType) -> bool:
    return bool(key.fields) and [type(field.type) for field in value.fields] == [VoidType]


def _is_expiring_set(key: StructType, value: StructType) -> bool:
    return bool(key.fields) and [(field.name, type(field.type)) for field in value.fields] == [(EXPIRY, LongType)]


_SHAPES: Final[Mapping[str, Callable[[StructType, StructType], bool]]] = MappingProxyType(
    {
        "dedupe": _is_seen_set,
        "dedupeWithinWatermark": _is_expiring_set,
    }
)
"""An aggregation keeps whatever its functions need."""
