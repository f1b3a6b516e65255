"""Infers the operator of `state/N` that has no metadata: Spark 3.5 and older do not write it (pure).

Rule: nothing is guessed. The names of directories, the columns in the schema files and the settings in the offset log
say which operators may have written the state. Where that is more than one, it is refused with their names.

It also recognises what people pass by mistake: a table, a sink, a parent folder, a folder inside a checkpoint. The
error says which of these the path looks like, what a checkpoint contains, and which path to try instead.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.logs import batch_ids
from understudy_node.checkpoint.operators import DEFAULT_STORE, OperatorMetadata, StoreMetadata
from understudy_node.checkpoint.shapes import COUNTS, JOIN, JOIN_SIDES, ROWS, has_shape_of, prefix_columns, side_table
from understudy_node.checkpoint.support import SUPPORTED_OPERATORS, state_format_of
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, UnsupportedError
from understudy_shared.spark.types import StructType, VoidType

_CONTAINS = (
    "A checkpoint contains 'metadata', 'offsets', 'commits' and 'state'; it is the checkpointLocation given to the "
    "query's writeStream"
)
_TABLE_MARKS = ("_delta_log", "_spark_metadata", "_SUCCESS", "_hudi", ".hoodie")
_TABLE_SUFFIXES = (".parquet", ".orc", ".avro", ".csv", ".json")
_INSIDE = frozenset({"commits", "offsets", "state", "sources"})
_MAX_CHILDREN = 50
_MAX_NAMED = 3


def require_checkpoint(files: CheckpointFiles) -> None:
    """Raise `NotACheckpointError` unless this looks like a streaming query's checkpoint."""
    names = files.list("")
    if names is None:
        raise NotACheckpointError("The path does not exist or is not a directory", where=files.url, fix=_CONTAINS)
    if {"metadata", "offsets"} <= set(names):
        return
    if not names:
        raise NotACheckpointError("The directory is empty", where=files.url, fix=_CONTAINS)
    if "metadata" in names and "commits" not in names and "state" not in names and not _looks_like_table(names):
        # Spark writes `metadata` first: the query has not run a batch yet.
        return
    raise NotACheckpointError(_what(names, files.url), where=files.url, fix=f"{_hint(files, names)}{_CONTAINS}")


def _what(names: list[str], url: str) -> str:
    if _looks_like_table(names):
        return "This is a table or a sink's output, not a checkpoint"
    if url.rstrip("/").rpartition("/")[2] in _INSIDE and batch_ids(names):
        return "This is a folder inside a checkpoint"
    return "This is not a checkpoint"


def _hint(files: CheckpointFiles, names: list[str]) -> str:
    parent, _, own_name = files.url.rstrip("/").rpartition("/")
    if own_name in _INSIDE and batch_ids(names):
        return f"Try {parent}. "
    children = [name for name in sorted(names)[:_MAX_CHILDREN] if _is_checkpoint(files, name)]
    if children:
        return (
            f"It holds {'a checkpoint' if len(children) == 1 else 'checkpoints'}: try {_joined(files.url, children)}. "
        )
    return ""


def _is_checkpoint(files: CheckpointFiles, name: str) -> bool:
    try:
        return {"metadata", "offsets"} <= set(files.list(name) or ())
    except CheckpointError:
        return False  # the hint must not fail on an unreadable folder


def _joined(url: str, children: list[str]) -> str:
    first = " or ".join(f"{url}/{child}" for child in children[:_MAX_NAMED])
    return first if len(children) <= _MAX_NAMED else f"{first} (there are more)"


def _looks_like_table(names: Iterable[str]) -> bool:
    return any(name in _TABLE_MARKS or name.endswith(_TABLE_SUFFIXES) for name in names)


Columns = tuple[StructType, StructType]
"""The columns of a store's keys and values."""

_FIX: Final = (
    "Name it in a file for --aliases (below [op{0}] the line operator = {1}), or continue the query on Spark 4.0 or "
    "later, whose first batch on this checkpoint records it"
)

_AGGREGATION, _DEDUPLICATION, _GROUPS = "stateStoreSave", "dedupe", "flatMapGroupsWithState"
_MARKED: Final = ("dedupeWithinWatermark", "globalLimit", "sessionWindowStateStoreSaveExec")
"""Operators whose columns have names that no other operator gives."""

_JOIN_STORES: Final = tuple(side_table(side, table) for side in JOIN_SIDES for table in (COUNTS, ROWS))
"""In the order in which Spark's metadata has them."""

_BUFFERS: Final = frozenset(
    {"avg", "bit_and", "bit_or", "bit_xor", "buf", "ck", "count", "first", "isEmpty", "last", "m2", "m3", "m4"}
    | {"max", "min", "n", "sum", "value", "valueSet", "xAvg", "yAvg", "xMk", "yMk"}
)
"""Names that aggregate functions give to their buffers."""


def stores_of(names: Collection[str]) -> tuple[str, ...]:
    """Return the stores of an operator, by a listing of the directory of its first partition."""
    return tuple(store for store in _JOIN_STORES if store in names) or (DEFAULT_STORE,)


def infer_operator(
    operator_id: int, stores: Mapping[str, Columns], conf: Mapping[str, str], *, named: str | None = None, where: str
) -> OperatorMetadata:
    """Return what the metadata would say. Raises UnsupportedError where several operators fit, and none of them is
    `named`.
    """
    if DEFAULT_STORE in stores:
        operators = _operators_of(*stores[DEFAULT_STORE], conf)
    else:
        operators = {JOIN: "its directories are those of the two sides of a join"}
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
    """Return the operators that may have written rows of these columns under these settings, each with what says so."""
    columns = ", ".join(field.name for field in value.fields)
    for name in (*_MARKED, _GROUPS):
        if has_shape_of(name, key, value, state_format="2"):
            return {name: f"no other operator keeps such values ({columns})"}
    if [type(field.type) for field in value.fields] == [VoidType]:
        return {_DEDUPLICATION: "no other operator keeps empty values"}
    found = {}
    if has_shape_of(_DEDUPLICATION, key, value):
        found[_DEDUPLICATION] = (
            "the columns of its keys are among those of its values, as Spark up to 3.3 declares them"
        )
    if _may_be_aggregation(key, value, state_format_of(_AGGREGATION, conf), is_only_fit=not found):
        found[_AGGREGATION] = f"its values ({columns}) may be buffers of aggregates, and fit no other operator"
    if state_format_of(_GROUPS, conf) != "2" and has_shape_of(_GROUPS, key, value, state_format="1"):
        found[_GROUPS] = f"its values ({columns}) may be the state of a group, and fit no other operator"
    return found


def _may_be_aggregation(key: StructType, value: StructType, state_format: str | None, *, is_only_fit: bool) -> bool:
    """Whether values may be buffers: alone in state format 2, behind the columns of the key in 1."""
    if state_format == "2":
        return is_only_fit or all(field.name in _BUFFERS for field in key.fields)
    columns = [[(field.name, field.type) for field in row.fields] for row in (key, value)]
    return columns[1][: len(columns[0])] == columns[0]
