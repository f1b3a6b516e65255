"""Which columns the stores of an operator have: what looks otherwise is refused, because it would be read wrong.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from understudy_shared.spark.types import IntType, LongType, StructType, VoidType

EXPIRY: Final = "expiresAtMicros"
"""The one value column of `dropDuplicatesWithinWatermark`."""
TIMEOUT: Final = "timeoutTimestamp"
"""The last value column of a group's state, where the query uses timeouts."""


def has_shape_of(operator_name: str, key: StructType, value: StructType, state_format: str | None = None) -> bool:
    """Whether a store with these columns is one that the operator writes in this state format."""
    fits = _SHAPES.get((operator_name, state_format), _SHAPES.get((operator_name, None)))
    return fits is None or fits(key, value)


def _is_seen_set(key: StructType, value: StructType) -> bool:
    return bool(key.fields) and [type(field.type) for field in value.fields] == [VoidType]


def _is_expiring_set(key: StructType, value: StructType) -> bool:
    return bool(key.fields) and [(field.name, type(field.type)) for field in value.fields] == [(EXPIRY, LongType)]


def _is_group_state(key: StructType, value: StructType) -> bool:
    columns = [(field.name, type(field.type)) for field in value.fields]
    return columns in ([("groupState", StructType)], [("groupState", StructType), (TIMEOUT, LongType)])


def _is_flat_group_state(key: StructType, value: StructType) -> bool:
    """The columns of the user's state; Spark declares the timeout an int, though it is a long."""
    return all(isinstance(field.type, IntType) for field in value.fields[-1:] if field.name == TIMEOUT)


def _is_row_count(key: StructType, value: StructType) -> bool:
    return ([type(field.type) for field in key.fields], [type(field.type) for field in value.fields]) == (
        [VoidType],
        [LongType],
    )


_SHAPES: Final[Mapping[tuple[str, str | None], Callable[[StructType, StructType], bool]]] = MappingProxyType(
    {
        ("dedupe", None): _is_seen_set,
        ("dedupeWithinWatermark", None): _is_expiring_set,
        ("applyInPandasWithState", "2"): _is_group_state,
        ("flatMapGroupsWithState", "2"): _is_group_state,
        ("applyInPandasWithState", None): _is_flat_group_state,
        ("flatMapGroupsWithState", None): _is_flat_group_state,
        ("globalLimit", None): _is_row_count,
    }
)
"""By operator and state format, None for any other. An aggregation keeps whatever its functions need."""
