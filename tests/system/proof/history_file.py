"""The file of a run: its records as JSON lines.

A line is written when its thing has happened, so the history of a run that was cut off can be read, but for its last
moments. `close` compresses it.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, cast

import orjson
from tests.system.proof.history import (
    AskedAtOnce,
    Bases,
    Bounds,
    Commit,
    FaultEvent,
    FinalReplica,
    History,
    Memory,
    Meta,
    Read,
    Record,
    Scan,
    SnapshotRead,
    Told,
    Watch,
    Watched,
)

HISTORY_NAME = "history.jsonl"

_KINDS: dict[str, type[Record]] = {
    "meta": Meta,
    "commit": Commit,
    "watched": Watched,
    "memory": Memory,
    "bases": Bases,
    "fault": FaultEvent,
    "read": Read,
    "scan": Scan,
    "snapshot": SnapshotRead,
    "watch": Watch,
    "at-once": AskedAtOnce,
    "final": FinalReplica,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class HistoryWriter:
    """Appends records to `folder/history.jsonl`; any thread may write."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HISTORY_NAME
        self._file = self.path.open("wb", buffering=1 << 16)
        self._lock = Lock()

    def write(self, record: Record) -> None:
        line = orjson.dumps([_NAMES[type(record)], record], option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            self._file.write(line)
            if not isinstance(record, Read | Scan | SnapshotRead | Watch):
                self._file.flush()

    def close(self) -> Path:
        """Compress the file; returns where it is now."""
        with self._lock:
            self._file.close()
        packed = self.path.with_name(self.path.name + ".gz")
        with self.path.open("rb") as plain, gzip.open(packed, "wb", compresslevel=6) as out:
            while block := plain.read(1 << 20):
                out.write(block)
        self.path.unlink()
        return packed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load(path: Path) -> History:
    """The history in a file, or in a folder that has one; compressed or not.

    Raises ValueError when there is no `Meta` in it, or a line that is none of ours. The last line of a file that was
    not closed may be cut; it is left out.
    """
    if path.is_dir():
        packed = path / (HISTORY_NAME + ".gz")
        path = packed if packed.exists() else path / HISTORY_NAME
    history: History | None = None
    for record in _records(path):
        if isinstance(record, Meta) and history is None:
            history = History(record)
        elif history is None:
            raise ValueError(f"{path} does not begin with what was run")
        else:
            history.add(record)
    if history is None:
        raise ValueError(f"{path} is empty")
    return history


def _records(path: Path) -> Iterator[Record]:
    decode = _Decoder()
    opened: Callable[[Path, str], AbstractContextManager[Iterable[bytes]]]
    opened = gzip.open if path.suffix == ".gz" else open  # type: ignore[assignment]  # both give lines of bytes for "rb"
    with opened(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return  # the writer was cut off in the middle of it
            try:
                name, fields = orjson.loads(line)
                record = decode(_KINDS[name], fields)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from error
            yield record


class _Decoder:
    """Makes records of their fields; equal bounds and texts become one object, since there are very many reads."""

    def __init__(self) -> None:
        self._bounds: dict[tuple[object, ...], Bounds] = {}

    def __call__(self, kind: type[Record], fields: dict[str, Any]) -> Record:
        if kind is Read:
            given = fields["bounds"]
            fields["bounds"] = self._bounds.setdefault(tuple(given.values()), Bounds(**given))
            fields["candidates"] = tuple((sys.intern(node), sys.intern(why)) for node, why in fields["candidates"])
            for name in ("router", "store", "key", "problem", "node", "role", "outcome", "way"):
                fields[name] = sys.intern(fields[name])
        if kind in (Scan, SnapshotRead):
            for name in ("candidates", "versions", "rows", "results"):
                if name in fields:
                    fields[name] = tuple(tuple(each) if isinstance(each, list) else each for each in fields[name])
        if kind is Watch:
            fields["keys"] = tuple(fields["keys"])
            fields["events"] = tuple(Told(**each) for each in fields["events"])
        return cast("Callable[..., Record]", kind)(**fields)
