"""The stateful operators that this release serves, as a table: later releases add rows.

Rule: an operator that is not in the table is refused by name, with what is supported and what to do. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from understudy_shared.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """A supported operator: its name for users, and the versions of its state layout that can be read."""

    meaning: str
    state_format_conf: str
    state_format_versions: frozenset[str]


SUPPORTED_OPERATORS: Final[Mapping[str, OperatorSupport]] = MappingProxyType(
    {
        "stateStoreSave": OperatorSupport(
            meaning="aggregations (groupBy, also with event-time windows)",
            state_format_conf="spark.sql.streaming.aggregation.stateFormatVersion",
            state_format_versions=frozenset({"2"}),
        ),
    }
)

SUPPORTED_CODECS: Final = frozenset({"lz4", "zstd", "snappy"})
SUPPORTED_ENCODINGS: Final = frozenset({"unsaferow"})

_MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dedupe": "dropDuplicates",
        "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
        "symmetricHashJoin": "stream-stream join",
        "sessionWindowStateStoreSaveExec": "session windows",
        "applyInPandasWithState": "applyInPandasWithState",
        "flatMapGroupsWithState": "flatMapGroupsWithState",
        "transformWithStateExec": "transformWithState",
        "transformWithStateInPySparkExec": "transformWithState in Python",
        "globalLimit": "limit",
    }
)


def why_unsupported(
    operator_id: int, operator_name: str, *, conf: Mapping[str, str], where: str
) -> UnsupportedError | None:
    """The error that refuses an operator; `None` when it can be served."""
    supported = "; ".join(f"{known} = {row.meaning}" for known, row in sorted(SUPPORTED_OPERATORS.items()))
    row = SUPPORTED_OPERATORS.get(operator_name)
    if row is None:
        meaning = _MEANINGS.get(operator_name)
        name = f"{operator_name}: {meaning}" if meaning else operator_name
        return UnsupportedError(
            f"Operator {operator_id} ({name}) is not supported by this release",
            where=where,
            fix=f"Supported: {supported}",
        )
    version = conf.get(row.state_format_conf)
    if version is not None and version not in row.state_format_versions:
        return UnsupportedError(
            f"Operator {operator_id} ({operator_name}) keeps its state in format {version}",
            where=where,
            fix=f"Supported: {', '.join(sorted(row.state_format_versions))} ({row.state_format_conf}); the format is "
            "fixed when a checkpoint is created: start the query on a new one",
        )
    return None


def refuse_encoding(encoding_format: str, *, where: str) -> None:
    """Raises on an unsupported encoding of rows."""
    if encoding_format not in SUPPORTED_ENCODINGS:
        raise UnsupportedError(
            f"State encoding {encoding_format} is not supported",
            where=where,
            fix="Set spark.sql.streaming.stateStore.encodingFormat to unsaferow and start the query on a new "
            "checkpoint",
        )


def refuse_codec(codec: str, *, where: str) -> None:
    """Raises on an unsupported compression codec."""
    if codec not in SUPPORTED_CODECS:
        raise UnsupportedError(
            f"State codec {codec} is not supported",
            where=where,
            fix="Set spark.sql.streaming.stateStore.compression.codec to lz4, zstd or snappy and restart the query: "
            "the files it writes from then on are read",
        )
