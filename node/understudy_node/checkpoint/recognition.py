"""Recognises paths that are passed by mistake: a table, a sink, a parent folder, a folder inside a checkpoint.

Rule: the error says which of these the path looks like, what a checkpoint contains, and which path to try instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.logs import batch_ids
from understudy_shared.base.errors import CheckpointError, NotACheckpointError

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
