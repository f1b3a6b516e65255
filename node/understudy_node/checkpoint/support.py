"""The stateful operators that this release serves, as a table: later releases add rows.

Rule: an operator that is not in the table is refused by name, with what is supported and what to do. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from understudy_node.checkpoint.logs import UNSAFE_ROW, OffsetEntry
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_node.checkpoint.shapes import (
    FAMILIES_FORMATS,
    JOIN,
    SESSIONS,
    has_shape_of,
    key_encoder,
    prefix_columns,
)
from understudy_node.checkpoint.state_variables import TRANSFORM
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.words import StoreKind
from understudy_shared.spark.key_codec import COLLATION_FIX
from understudy_shared.spark.types import StructType, collated_columns, opaque_columns, parse_schema


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """A supported operator: its name for users, the kind of its stores, and the readable versions of its state layout.
    `state_format_conf` is "" for an operator whose layout never had versions.

    `is_normalised` is whether Spark normalises floats in keys before it stores them, so that -0.0 is 0.0. For groups
    with state it does not: the key that came first stays. For deduplications it depends on the Spark
    (`stores/sets.py`).
    """

    meaning: str
    kind: StoreKind = StoreKind.VALUE
    state_format_conf: str = ""
    state_format_versions: frozenset[str] = frozenset()
    unsaid_format: str | None = None
    """The version of a layout that the offset log does not record; None where that makes no difference."""
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
    """Return the version of an operator's state layout by the offset log; None where that does not record it."""
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
            f"Its columns are not those of {operator_name}: key {key.name:.200}, value {value.name:.200}",
            where=where,
            fix=_NEWER_UNDERSTUDY,
        )
    return None


def refuse_encoding(encoding_format: str, *, where: str) -> None:
    """Raise on an unsupported encoding of rows."""
    if encoding_format not in SUPPORTED_ENCODINGS:
        raise UnsupportedError(
            f"State encoding {encoding_format} is not supported",
            where=where,
            fix=f"Set {_ENCODING} to unsaferow or avro and start the query on a new checkpoint",
        )


def refuse_codec(codec: str, *, where: str) -> None:
    """Raise on an unsupported compression codec."""
    if codec not in SUPPORTED_CODECS:
        raise UnsupportedError(
            f"State codec {codec} is not supported",
            where=where,
            fix="Set spark.sql.streaming.stateStore.compression.codec to lz4, zstd or snappy and restart the query: "
            "the files it writes from then on are read",
        )
