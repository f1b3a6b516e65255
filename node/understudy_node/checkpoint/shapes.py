"""The columns that the stores of an operator must have: others are refused, because they would be misread.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from understudy_shared.spark.types import (
    BooleanType,
    IntType,
    LongType,
    SparkType,
    StructType,
    TimestampNtzType,
    TimestampType,
    VoidType,
)

EXPIRY: Final = "expiresAtMicros"
"""The one value column of `dropDuplicatesWithinWatermark`."""
TIMEOUT: Final = "timeoutTimestamp"
"""The last value column of a group's state, where the query uses timeouts."""
SESSION_WINDOW: Final = "session_window"
"""The value column with start and end of a session, whatever the query calls it."""
SESSIONS: Final = "sessionWindowStateStoreSaveExec"
JOIN: Final = "symmetricHashJoin"
UNMATCHED_FORMAT: Final = "1"
"""The state format of a join whose rows do not say whether they found a match: of Spark 2."""
TIMED_FORMAT: Final = "4"
"""The state format of a join whose rows are stored by their event time; before, by an index."""
FAMILIES_FORMATS: Final = frozenset({"3", TIMED_FORMAT})
"""The state formats of a join whose tables are column families of one store; in format 2 they are stores."""
COUNTS, ROWS = "keyToNumValues", "keyWithIndexToValue"
"""The two tables of each side of a join: `left-keyToNumValues`, and so on."""
TIMED_ROWS, TIMES = "keyWithTsToValues", "tsWithKey"
"""The same in format 4: rows by key and event time, and an index by which Spark removes them."""
EVENT_TIME: Final = "__event_time"
"""The last column of their keys: microseconds."""


_MATCHED: Final = [("matched", BooleanType)]


def side_table(side: str, table: str) -> str:
    """Return the name of a table of a join."""
    return f"{side}-{table}"


JOIN_SIDES: Final = ("left", "right")


def join_tables(state_format: str | None) -> frozenset[str]:
    """Return the tables that a join has in a state format."""
    tables = (TIMED_ROWS, TIMES) if state_format == TIMED_FORMAT else (COUNTS, ROWS)
    return frozenset(side_table(side, table) for side in JOIN_SIDES for table in tables)


def key_encoder(operator_name: str, table: str) -> str:
    """Return how the keys of a table are encoded."""
    return _ENCODERS.get(table.partition("-")[2], _AS_THEY_ARE) if operator_name == JOIN else _AS_THEY_ARE


def has_shape_of(
    operator_name: str,
    key: StructType,
    value: StructType,
    *,
    state_format: str | None = None,
    table: str = "",
) -> bool:
    """Whether columns are those that the operator writes in this state format, or into this table of a join."""
    variant = table.partition("-")[2] if operator_name == JOIN else state_format
    if variant == ROWS and state_format == UNMATCHED_FORMAT:
        return _is_indexed(key)
    fits = _SHAPES.get((operator_name, variant), _SHAPES.get((operator_name, None)))
    return fits is None or fits(key, value)


def prefix_columns(operator_name: str, key: StructType) -> int:
    """Return how many key columns the operator scans by: RocksDB stores these apart."""
    return len(key.fields) - 1 if operator_name == SESSIONS else 0


def _is_seen_set(key: StructType, value: StructType) -> bool:
    """Whether values are one void column. Up to Spark 3.3 the schema has all columns of the input instead, though what
    is stored is the same; later releases leave that file as it is.
    """
    every = {(field.name, field.type) for field in value.fields}
    is_input = all((field.name, field.type) in every for field in key.fields)
    return bool(key.fields) and (is_input or [type(field.type) for field in value.fields] == [VoidType])


def _is_expiring_set(key: StructType, value: StructType) -> bool:
    return bool(key.fields) and [(field.name, type(field.type)) for field in value.fields] == [(EXPIRY, LongType)]


def _is_group_state(key: StructType, value: StructType) -> bool:
    columns = [(field.name, type(field.type)) for field in value.fields]
    return columns in ([("groupState", StructType)], [("groupState", StructType), (TIMEOUT, LongType)])


def _is_flat_group_state(key: StructType, value: StructType) -> bool:
    """Whether these are the columns of the user's state; Spark declares the timeout an int, though it is a long."""
    return all(isinstance(field.type, IntType) for field in value.fields[-1:] if field.name == TIMEOUT)


def _is_sessions(key: StructType, value: StructType) -> bool:
    """Whether keys are the grouping columns and the start, and values whole rows with their window."""
    windows = [field.type for field in value.fields if field.name == SESSION_WINDOW]
    has_start = len(key.fields) > 1 and isinstance(key.fields[-1].type, TimestampType)
    return has_start and list(map(_is_span, windows)) == [True]


def _is_span(kind: SparkType) -> bool:
    return (
        isinstance(kind, StructType)
        and [part.name for part in kind.fields] == ["start", "end"]
        and all(isinstance(part.type, TimestampType | TimestampNtzType) for part in kind.fields)
    )


def _is_row_count(key: StructType, value: StructType) -> bool:
    return ([type(field.type) for field in key.fields], [type(field.type) for field in value.fields]) == (
        [VoidType],
        [LongType],
    )


def _is_counts(key: StructType, value: StructType) -> bool:
    return bool(key.fields) and [type(field.type) for field in value.fields] == [LongType]


def _is_rows(key: StructType, value: StructType) -> bool:
    """Whether keys end with the index, and rows with whether they found a match."""
    return _is_indexed(key) and [(field.name, type(field.type)) for field in value.fields[-1:]] == _MATCHED


def _is_indexed(key: StructType) -> bool:
    return len(key.fields) > 1 and (key.fields[-1].name, type(key.fields[-1].type)) == ("index", LongType)


def _is_timed_rows(key: StructType, value: StructType) -> bool:
    """Whether keys end with the event time, and rows with whether they found a match."""
    ends = [(part.fields[-1].name, type(part.fields[-1].type)) for part in (key, value) if part.fields]
    return len(key.fields) > 1 and ends == [(EVENT_TIME, LongType), ("matched", BooleanType)]


def _is_times(key: StructType, value: StructType) -> bool:
    return bool(key.fields) and key.fields[-1].name == EVENT_TIME


def _is_no_table(key: StructType, value: StructType) -> bool:
    return False


_SHAPES: Final[Mapping[tuple[str, str | None], Callable[[StructType, StructType], bool]]] = MappingProxyType(
    {
        ("dedupe", None): _is_seen_set,
        ("dedupeWithinWatermark", None): _is_expiring_set,
        ("applyInPandasWithState", "2"): _is_group_state,
        ("flatMapGroupsWithState", "2"): _is_group_state,
        ("applyInPandasWithState", None): _is_flat_group_state,
        ("flatMapGroupsWithState", None): _is_flat_group_state,
        ("globalLimit", None): _is_row_count,
        (SESSIONS, None): _is_sessions,
        (JOIN, COUNTS): _is_counts,
        (JOIN, ROWS): _is_rows,
        (JOIN, TIMED_ROWS): _is_timed_rows,
        (JOIN, TIMES): _is_times,
        (JOIN, None): _is_no_table,
    }
)
"""Tests of columns by operator and state format, for a join by table. Aggregations store what functions need."""

_AS_THEY_ARE: Final = "NoPrefixKeyStateEncoder"
_ENCODERS: Final[Mapping[str, str]] = MappingProxyType(
    {TIMED_ROWS: "TimestampAsPostfixKeyStateEncoder", TIMES: "TimestampAsPrefixKeyStateEncoder"}
)
"""Encoders by table of a join, with a prefix or an order in the bytes. Files of session windows name no encoder."""
