"""The stateful operators that this release serves, and the columns that their stores must have.

Rule: an operator that is not in the table is refused by name, with what is supported and what to do. So are stores with
other columns: they would be misread.

Spark 3.5 and older write no metadata of an operator, so it is inferred. Nothing is guessed: the names of directories,
the columns in the schema files and the settings in the offset log say which operators may have written the state. If
several may have, the state is refused with their names. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from understudy_node.checkpoint.logs import (
    DEFAULT_STORE,
    UNSAFE_ROW,
    OffsetEntry,
    OperatorMetadata,
    StoreMetadata,
)
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_node.checkpoint.state_variables import TRANSFORM
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.words import StoreKind
from understudy_shared.spark.key_codec import COLLATION_FIX
from understudy_shared.spark.types import (
    BooleanType,
    IntType,
    LongType,
    SparkType,
    StructType,
    TimestampNtzType,
    TimestampType,
    VoidType,
    collated_columns,
    opaque_columns,
    parse_schema,
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
"""The state format of a join without match flags in its rows: of Spark 2."""
TIMED_FORMAT: Final = "4"
"""The state format of a join that stores rows by their event time; before, by an index."""
FAMILIES_FORMATS: Final = frozenset({"3", TIMED_FORMAT})
"""The state formats of a join with its tables as column families of one store; in format 2 they are stores."""
COUNTS, ROWS = "keyToNumValues", "keyWithIndexToValue"
"""The two tables of each side of a join: `left-keyToNumValues`, and so on."""
TIMED_ROWS, TIMES = "keyWithTsToValues", "tsWithKey"
"""The same in format 4: rows by key and event time, and the index that Spark uses to remove them."""
EVENT_TIME: Final = "__event_time"
"""The last column of their keys: microseconds."""
JOIN_SIDES: Final = ("left", "right")

_Columns = list[tuple[str, type[SparkType]]]


def side_table(side: str, table: str) -> str:
    """Return the name of a table of a join."""
    return f"{side}-{table}"


def join_tables(state_format: str | None) -> frozenset[str]:
    tables = (TIMED_ROWS, TIMES) if state_format == TIMED_FORMAT else (COUNTS, ROWS)
    return frozenset(side_table(side, table) for side in JOIN_SIDES for table in tables)


def key_encoder(operator_name: str, table: str) -> str:
    return _ENCODERS.get(table.partition("-")[2], _AS_THEY_ARE) if operator_name == JOIN else _AS_THEY_ARE


def has_shape_of(
    operator_name: str,
    key: StructType,
    value: StructType,
    *,
    state_format: str | None = None,
    table: str = "",
) -> bool:
    """Whether the operator writes these columns in this state format, or into this table of a join.

    Aggregations store what functions need.
    """
    keys, values = _columns(key), _columns(value)
    match operator_name:
        case "dedupe":
            # Values are one void column. Up to Spark 3.3 the schema has all columns of the input instead, though what
            # is stored is the same; later releases leave that file as it is.
            every = {(field.name, field.type) for field in value.fields}
            is_input = all((field.name, field.type) in every for field in key.fields)
            return bool(keys) and (is_input or [kind for _, kind in values] == [VoidType])
        case "dedupeWithinWatermark":
            return bool(keys) and values == [(EXPIRY, LongType)]
        case "applyInPandasWithState" | "flatMapGroupsWithState" if state_format == "2":
            return values in ([("groupState", StructType)], [("groupState", StructType), (TIMEOUT, LongType)])
        case "applyInPandasWithState" | "flatMapGroupsWithState":
            # The columns of the user's state. Spark declares the timeout an int, though it is a long.
            return all(kind is IntType for name, kind in values[-1:] if name == TIMEOUT)
        case "globalLimit":
            return ([kind for _, kind in keys], [kind for _, kind in values]) == ([VoidType], [LongType])
        case "sessionWindowStateStoreSaveExec":
            # Keys are the grouping columns and the start, and values whole rows with their window.
            windows = [field.type for field in value.fields if field.name == SESSION_WINDOW]
            return len(keys) > 1 and keys[-1][1] is TimestampType and list(map(_is_span, windows)) == [True]
        case "symmetricHashJoin":
            return _fits_table(table.partition("-")[2], state_format, keys, values)
    return True


def _columns(struct: StructType) -> _Columns:
    return [(field.name, type(field.type)) for field in struct.fields]


def _is_span(kind: SparkType) -> bool:
    return (
        isinstance(kind, StructType)
        and [part.name for part in kind.fields] == ["start", "end"]
        and all(isinstance(part.type, TimestampType | TimestampNtzType) for part in kind.fields)
    )


def _fits_table(table: str, state_format: str | None, keys: _Columns, values: _Columns) -> bool:
    """Whether keys end with an index or the event time, and rows with whether they found a match."""
    is_matched = values[-1:] == [("matched", BooleanType)]
    match table:
        case "keyToNumValues":
            return bool(keys) and [kind for _, kind in values] == [LongType]
        case "keyWithIndexToValue":
            is_indexed = len(keys) > 1 and keys[-1] == ("index", LongType)
            return is_indexed and (is_matched or state_format == UNMATCHED_FORMAT)
        case "keyWithTsToValues":
            return len(keys) > 1 and keys[-1] == (EVENT_TIME, LongType) and is_matched
        case "tsWithKey":
            return bool(keys) and keys[-1][0] == EVENT_TIME
    return False


def prefix_columns(operator_name: str, key: StructType) -> int:
    """Return how many key columns the operator scans by: RocksDB stores these apart."""
    return len(key.fields) - 1 if operator_name == SESSIONS else 0


_AS_THEY_ARE: Final = "NoPrefixKeyStateEncoder"
_ENCODERS: Final[Mapping[str, str]] = MappingProxyType(
    {TIMED_ROWS: "TimestampAsPostfixKeyStateEncoder", TIMES: "TimestampAsPrefixKeyStateEncoder"}
)
"""Encoders by table of a join, with a prefix or an order in the bytes. Files of session windows name no encoder."""


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """A supported operator: its name for users, the kind of its stores, and the readable versions of its state layout.
    `state_format_conf` is "" for an operator without versions of its layout.

    `is_normalised` is whether Spark normalises floats in keys before it stores them, so that -0.0 is 0.0. For groups
    with state it does not: the key that came first stays. For deduplications it depends on the Spark
    (`EitherZero` in `stores/operator_state.py`).
    """

    meaning: str
    kind: StoreKind = StoreKind.VALUE
    state_format_conf: str = ""
    state_format_versions: frozenset[str] = frozenset()
    unsaid_format: str | None = None
    """The assumed version of a layout if the offset log does not record it; None if it makes no difference."""
    is_normalised: bool = True


_GROUP_STATE_FORMAT: Final = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"

_AGGREGATION: Final = OperatorSupport(
    meaning="aggregations (groupBy, also with event-time windows)",
    state_format_conf="spark.sql.streaming.aggregation.stateFormatVersion",
    state_format_versions=frozenset({"1", "2"}),
)

SUPPORTED_OPERATORS: Final[Mapping[str, OperatorSupport]] = MappingProxyType(
    {
        "stateStoreSave": _AGGREGATION,
        "StatefulStreamlineAggregate": replace(_AGGREGATION, meaning="aggregations in Real-Time Mode"),
        "dedupe": OperatorSupport(meaning="dropDuplicates", kind=StoreKind.SET, is_normalised=False),
        "dedupeWithinWatermark": OperatorSupport(
            meaning="dropDuplicatesWithinWatermark", kind=StoreKind.SET, is_normalised=False
        ),
        "applyInPandasWithState": OperatorSupport(
            meaning="applyInPandasWithState",
            state_format_conf=_GROUP_STATE_FORMAT,
            state_format_versions=frozenset({"1", "2"}),
            is_normalised=False,
        ),
        "flatMapGroupsWithState": OperatorSupport(
            meaning="flatMapGroupsWithState, mapGroupsWithState (in Spark 3 also applyInPandasWithState)",
            state_format_conf=_GROUP_STATE_FORMAT,
            state_format_versions=frozenset({"1", "2"}),
            is_normalised=False,
        ),
        "globalLimit": OperatorSupport(meaning="limit"),
        JOIN: OperatorSupport(
            meaning="stream-stream join",
            kind=StoreKind.JOIN_SIDE,
            state_format_conf="spark.sql.streaming.join.stateFormatVersion",
            state_format_versions=frozenset({"1", "2", "3", "4"}),
            unsaid_format="1",
        ),
        SESSIONS: OperatorSupport(
            meaning="session windows",
            kind=StoreKind.SESSION,
            state_format_conf="spark.sql.streaming.sessionWindow.stateFormatVersion",
            state_format_versions=frozenset({"1"}),
        ),
        **{
            name: OperatorSupport(
                meaning=meaning,
                state_format_conf="spark.sql.streaming.transformWithState.stateSchemaVersion",
                state_format_versions=frozenset({"3"}),
                is_normalised=False,
            )
            for name, meaning in TRANSFORM.items()
        },
    }
)

SUPPORTED_CODECS: Final = frozenset({"lz4", "zstd", "snappy"})
AVRO: Final = "avro"
_ENCODING: Final = "spark.sql.streaming.stateStore.encodingFormat"
SUPPORTED_ENCODINGS: Final = frozenset({UNSAFE_ROW, AVRO})

_ENCODER: Final = re.compile(r"\b(\w+KeyStateEncoder)(?:Spec)?\b")
_NEWER_UNDERSTUDY: Final = "A newer Spark, or another operator, wrote it: use a newer Understudy"


def why_unsupported(
    operator_id: int, operator_name: str, offsets: OffsetEntry, *, where: str
) -> UnsupportedError | None:
    """Make the error that refuses an operator, by the settings in the offset log; `None` when it can be served."""
    supported = "; ".join(f"{known} = {row.meaning}" for known, row in sorted(SUPPORTED_OPERATORS.items()))
    row = SUPPORTED_OPERATORS.get(operator_name)
    if row is None:
        return UnsupportedError(
            f"Operator {operator_id} ({operator_name}) is not supported by this release",
            where=where,
            fix=f"Supported: {supported}",
        )
    if offsets.properties.encoding_format == AVRO and operator_name not in TRANSFORM:
        return UnsupportedError(
            f"Operator {operator_id} ({operator_name}) keeps its state in Avro, which no known Spark writes for it",
            where=where,
            fix=f"Avro is read of {', '.join(TRANSFORM.values())}. If a newer Spark wrote this, use a newer "
            f"Understudy, or set {_ENCODING} to unsaferow and start the query on a new checkpoint",
        )
    version = state_format_of(operator_name, offsets.conf)
    if version is not None and version not in row.state_format_versions:
        return UnsupportedError(
            f"Operator {operator_id} ({operator_name}) keeps its state in format {version}",
            where=where,
            fix=f"Supported: {', '.join(sorted(row.state_format_versions))} ({row.state_format_conf}); the format is "
            "fixed when a checkpoint is created: start the query on a new one",
        )
    return None


def state_format_of(operator_name: str, conf: Mapping[str, str]) -> str | None:
    """Return the version of an operator's state layout by the offset log; None if it is not recorded."""
    row = SUPPORTED_OPERATORS.get(operator_name)
    return None if row is None or not row.state_format_conf else conf.get(row.state_format_conf, row.unsaid_format)


def why_unreadable(
    families: Sequence[ColumnFamilySchema],
    operator_name: str,
    state_format: str | None,
    *,
    table: str = "",
    num_cols_prefix_key: int = 0,
    where: str,
) -> UnsupportedError | None:
    """Return `None` when a store of a supported operator can be served, else the refusal, which names the column.

    `table` is the store's name. A join has its tables as column families of one store, from state format 3 on. The
    state variables of `transformWithState` are judged one by one (`state_variables`).
    """
    if operator_name in TRANSFORM:
        return None
    if operator_name == JOIN and state_format in FAMILIES_FORMATS:
        reasons = [
            _why_unreadable(each, operator_name, state_format, each.name, num_cols_prefix_key, where)
            for each in families
        ]
        return next((reason for reason in reasons if reason is not None), None)
    if len(families) != 1:
        return UnsupportedError(
            f"It has {len(families)} column families, and one is read", where=where, fix=_NEWER_UNDERSTUDY
        )
    return _why_unreadable(families[0], operator_name, state_format, table, num_cols_prefix_key, where)


def _why_unreadable(  # noqa: PLR0917  # all that a column family is judged by
    family: ColumnFamilySchema,
    operator_name: str,
    state_format: str | None,
    table: str,
    num_cols_prefix_key: int,
    where: str,
) -> UnsupportedError | None:
    if family.key_encoder is not None and key_encoder(operator_name, table) not in _ENCODER.findall(family.key_encoder):
        return UnsupportedError(
            f"Its keys are encoded by {family.key_encoder:.200}", where=where, fix=_NEWER_UNDERSTUDY
        )
    parsed: list[StructType] = []
    for part, schema in (("key", family.key_schema), ("value", family.value_schema)):
        try:
            parsed.append(parse_schema(schema))
        except UnsupportedError as error:
            return UnsupportedError(f"Its {part} has a {error.where}: {error.what}", where=where, fix=error.fix)
    key, value = parsed
    if opaque := opaque_columns(key):
        return UnsupportedError(
            f"Its key has a column {opaque[0]} of a type that is not decoded: {key.name:.200}",
            where=where,
            fix="Cast it to a string or a binary before the stateful operator",
        )
    collated = collated_columns(key)
    if collated:
        return UnsupportedError(
            f"Its key has columns with a collation: {', '.join(collated)}", where=where, fix=COLLATION_FIX
        )
    if num_cols_prefix_key != prefix_columns(operator_name, key) or not has_shape_of(
        operator_name, key, value, state_format=state_format, table=table
    ):
        return UnsupportedError(
            f"Its columns do not fit {operator_name}: key {key.name:.200}, value {value.name:.200}",
            where=where,
            fix=_NEWER_UNDERSTUDY,
        )
    return None


def refuse_encoding(encoding_format: str, *, where: str) -> None:
    if encoding_format not in SUPPORTED_ENCODINGS:
        raise UnsupportedError(
            f"State encoding {encoding_format} is not supported",
            where=where,
            fix=f"Set {_ENCODING} to unsaferow or avro and start the query on a new checkpoint",
        )


def refuse_codec(codec: str, *, where: str) -> None:
    if codec not in SUPPORTED_CODECS:
        raise UnsupportedError(
            f"State codec {codec} is not supported",
            where=where,
            fix="Set spark.sql.streaming.stateStore.compression.codec to lz4, zstd or snappy and restart the query: "
            "the files it writes from then on are read",
        )


_FIX: Final = (
    "Name it in a file for --aliases (below [op{0}] the line operator = {1}), or continue the query on Spark 4.0 or "
    "later, whose first batch on this checkpoint records it"
)

_AGGREGATES, _DEDUPLICATION, _GROUPS = "stateStoreSave", "dedupe", "flatMapGroupsWithState"
_MARKED: Final = ("dedupeWithinWatermark", "globalLimit", "sessionWindowStateStoreSaveExec")
"""Operators that can be recognized by the names of their columns."""

_JOIN_STORES: Final = tuple(side_table(side, table) for side in JOIN_SIDES for table in (COUNTS, ROWS))
"""In the order of Spark's metadata."""

_BUFFERS: Final = frozenset(
    {"avg", "bit_and", "bit_or", "bit_xor", "buf", "ck", "count", "first", "isEmpty", "last", "m2", "m3", "m4"}
    | {"max", "min", "n", "sum", "value", "valueSet", "xAvg", "yAvg", "xMk", "yMk"}
)
"""Names that aggregate functions give to their buffers."""


def stores_of(names: Collection[str]) -> tuple[str, ...]:
    """Return the stores of an operator, by a listing of the directory of its first partition."""
    return tuple(store for store in _JOIN_STORES if store in names) or (DEFAULT_STORE,)


def infer_operator(
    operator_id: int,
    stores: Mapping[str, tuple[StructType, StructType]],
    conf: Mapping[str, str],
    *,
    named: str | None = None,
    where: str,
) -> OperatorMetadata:
    """Infer what the metadata would say. Raises UnsupportedError if several operators fit and `named` chooses none of
    them.
    """
    if DEFAULT_STORE in stores:
        operators = _operators_of(*stores[DEFAULT_STORE], conf)
    else:
        operators = {JOIN: "its directories are the two sides of a join"}
    if named in operators and len(operators) > 1:
        operators = {named: "the alias file says so, and its columns allow it"}
    if len(operators) != 1:
        may_be = " or ".join(SUPPORTED_OPERATORS[name].meaning for name in operators) or "none that is known"
        raise UnsupportedError(
            f"Operator {operator_id} may by its columns be {may_be}, and Spark before 4.0 does not record which",
            where=where,
            fix=_FIX.format(operator_id, " or ".join(map(json.dumps, operators))),
        )
    ((operator, reason),) = operators.items()
    return OperatorMetadata(
        operator_id,
        operator,
        tuple(StoreMetadata(name, prefix_columns(operator, key)) for name, (key, _) in stores.items()),
        {},
        inferred_from=reason,
    )


def _operators_of(key: StructType, value: StructType, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the operators that may have written rows of these columns under these settings, each with the evidence."""
    columns = ", ".join(field.name for field in value.fields)
    for name in (*_MARKED, _GROUPS):
        if has_shape_of(name, key, value, state_format="2"):
            return {name: f"no other operator keeps such values ({columns})"}
    if [type(field.type) for field in value.fields] == [VoidType]:
        return {_DEDUPLICATION: "no other operator keeps empty values"}
    found = {}
    if has_shape_of(_DEDUPLICATION, key, value):
        found[_DEDUPLICATION] = "its values repeat the columns of its keys, as Spark up to 3.3 declares them"
    if _may_be_aggregation(key, value, state_format_of(_AGGREGATES, conf), is_only_fit=not found):
        found[_AGGREGATES] = f"its values ({columns}) may be buffers of aggregates, and fit no other operator"
    if state_format_of(_GROUPS, conf) != "2" and has_shape_of(_GROUPS, key, value, state_format="1"):
        found[_GROUPS] = f"its values ({columns}) may be the state of a group, and fit no other operator"
    return found


def _may_be_aggregation(key: StructType, value: StructType, state_format: str | None, *, is_only_fit: bool) -> bool:
    """Whether values may be buffers: alone in state format 2, after the columns of the key in 1."""
    if state_format == "2":
        return is_only_fit or all(field.name in _BUFFERS for field in key.fields)
    columns = [[(field.name, field.type) for field in row.fields] for row in (key, value)]
    return columns[1][: len(columns[0])] == columns[0]
