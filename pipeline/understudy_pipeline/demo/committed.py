"""How far the demo's query has come, from its checkpoint's logs.

What a committed batch took is never read again. A batch that is logged and not committed is run again after a crash,
from the same entries: they must still be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from understudy_pipeline.aligned.offset import SourceOffset
from understudy_pipeline.inputs.records import Cursor

_LINES_BEFORE_SOURCES = 2
"""Of a file in the offset log: its version, and the batch's own metadata."""


def has_begun(checkpoint: Path) -> bool:
    """Whether a batch was ever logged."""
    return _newest(checkpoint / "offsets") is not None


def read_until(checkpoint: Path) -> Mapping[int, Cursor]:
    """Where each partition's next record comes after the newest committed batch; empty before the first commit.

    Raises OffsetError for a checkpoint of another source.
    """
    batch = _newest(checkpoint / "commits")
    return {} if batch is None else _ends(checkpoint, batch)


def planned_until(checkpoint: Path) -> Mapping[int, Cursor]:
    """The same after the newest logged batch. Empty where it cannot be read: Spark says so, and better."""
    batch = _newest(checkpoint / "offsets")
    try:
        return {} if batch is None else _ends(checkpoint, batch)
    except (ValueError, IndexError):
        return {}


def _ends(checkpoint: Path, batch: int) -> Mapping[int, Cursor]:
    lines = (checkpoint / "offsets" / str(batch)).read_bytes().split(b"\n")
    end = SourceOffset.from_json(orjson.loads(lines[_LINES_BEFORE_SOURCES]))
    return {place.partition: cursor for place, cursor in end.cursors.items() if cursor.offset}


def _newest(folder: Path) -> int | None:
    """The last entry of a log; Spark renames a file into its place when it is whole."""
    if not folder.is_dir():
        return None
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=None)
