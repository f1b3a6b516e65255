"""The progress of the demo's query, from its checkpoint's logs.

Entries of a committed batch are never read again. A batch that is logged and not committed runs again after a crash,
from the same entries: these must still exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from understudy_pipeline.aligned.offset import SourceOffset
from understudy_pipeline.inputs.records import Cursor

_LINES_BEFORE_SOURCES = 2
"""Lines at the start of a file in the offset log: its version, and the batch's metadata."""


def has_begun(checkpoint: Path) -> bool:
    """Whether the query has logged a batch."""
    return _newest(checkpoint / "offsets") is not None


def read_until(checkpoint: Path) -> Mapping[int, Cursor]:
    """Return the cursor of each partition after the newest committed batch. Empty before the first commit.

    Raises OffsetError for a checkpoint of another source.
    """
    batch = _newest(checkpoint / "commits")
    return {} if batch is None else _ends(checkpoint, batch)


def planned_until(checkpoint: Path) -> Mapping[int, Cursor]:
    """Return the cursor of each partition after the newest logged batch. Empty if unreadable: Spark reports that."""
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
    """Return the newest batch in a log. Spark renames a file into place when it is complete."""
    if not folder.is_dir():
        return None
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=None)
