"""The streams of an export as they come: read to their end record, in pieces after which a reader can resume.

Rule: a stream was cut if its end record is missing, or states another number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from io import BufferedIOBase
from typing import Any, Final, NamedTuple

import orjson

from understudy.calls.http_client import ReportedProblemError
from understudy.typed.frames import CutError, arrow_records, require_rows, said_by
from understudy_shared.base.errors import UnderstudyError

READ_BYTES = 256 * 1024
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Size at which rows are passed on without a cursor, as for a role that may read some keys only."""

MAX_TAIL_BYTES = 64 * 1024
"""Bytes at the end of a CSV that are held back until it is clear whether they are the closing comment."""

_MAY_PASS: Final = (HTTPStatus.TOO_MANY_REQUESTS, *range(HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT + 1))


def may_pass(error: UnderstudyError) -> bool:
    """Whether a stream that ended by an error may be resumed: it was cut, or its server says so."""
    if isinstance(error, ReportedProblemError):
        return orjson.loads(error.body).get("status") in _MAY_PASS
    return isinstance(error, CutError)


class ExportPiece(NamedTuple):
    """Some rows. `cursor` is the place after them; None if it is unknown."""

    content: Any
    rows: int
    size_bytes: int
    cursor: str | None


ReadStream = Callable[[BufferedIOBase], Iterator[ExportPiece]]
"""A function that yields the pieces of a stream. Raises CutError, and ReportedProblemError if the server says why."""


def read_ndjson(body: BufferedIOBase) -> Iterator[ExportPiece]:
    """Yield lines with the JSON of a row each."""
    held: list[bytes] = []
    rows, size_bytes, total = 0, 0, 0
    for line in _lines(body):
        if line.startswith(b'{"row":'):
            held.append(line[7:-1])
            rows += 1
            size_bytes += len(line)
            if size_bytes < MAX_HELD_BYTES:
                continue
            said = {}
        else:
            said = said_by(line)
        if "error" in said:
            raise ReportedProblemError(said["error"], orjson.dumps(said["error"]))
        total += rows
        if "end" in said:
            require_rows(total, said["end"])
        yield ExportPiece(b"".join([row + b"\n" for row in held]), rows, size_bytes, said.get("cursor"))
        held, rows, size_bytes = [], 0, 0
        if "end" in said:
            return
    raise CutError("the stream has no end record")


def read_csv(body: BufferedIOBase) -> Iterator[ExportPiece]:
    """Yield lines of CSV, the names first, without the comment at the end."""
    tail, counting = b"", _CsvLines()
    cut: CutError | None = None
    try:
        for data in _pieces(body):
            tail += data
            if len(tail) > MAX_TAIL_BYTES:
                done, tail = tail[:-MAX_TAIL_BYTES], tail[-MAX_TAIL_BYTES:]
                yield ExportPiece(done, counting.add(done), len(done), None)
    except CutError as error:
        cut = error
    at = tail.rfind(b"\n", 0, -1) + 1
    last, rest = tail[at:], tail[:at]
    if not last.startswith(b"# ") or not last.endswith(b"}\n"):
        raise cut or CutError("the stream has no end record")
    kind, _, json = last[2:].partition(b" ")
    if kind == b"error":
        raise ReportedProblemError(said_by(json), json)
    rows = counting.add(rest)
    require_rows(counting.lines - 1, said_by(json))
    yield ExportPiece(rest, rows, len(rest), None)


def read_arrow(body: BufferedIOBase) -> Iterator[ExportPiece]:
    """Yield lists of record batches."""
    import pyarrow as pa  # noqa: PLC0415

    held: list[Any] = []
    rows, total = 0, 0
    for batch, said in arrow_records(pa.PythonFile(body, "r")):
        if "error" in said:
            raise ReportedProblemError(said["error"], orjson.dumps(said["error"]))
        held.append(batch)
        rows += batch.num_rows
        size_bytes = sum(each.nbytes for each in held)
        if not said and size_bytes < MAX_HELD_BYTES:
            continue
        total += rows
        if "end" in said:
            require_rows(total, said["end"])
        yield ExportPiece(held, rows, size_bytes, said.get("cursor"))
        held, rows = [], 0


class _CsvLines:
    """The number of lines of CSV: a line break in quotes is in a line."""

    def __init__(self) -> None:
        self.lines = 0
        self._is_quoted = False

    def add(self, data: bytes) -> int:
        """Count the lines that end in these bytes."""
        parts = data.split(b'"')
        found = sum(part.count(b"\n") for part in parts[int(self._is_quoted) :: 2])
        self._is_quoted ^= len(parts) % 2 == 0
        self.lines += found
        return found


def _pieces(body: BufferedIOBase) -> Iterator[bytes]:
    try:
        while data := body.read1(READ_BYTES):
            yield data
    except (OSError, ValueError) as error:
        raise CutError(f"the stream was cut: {error or type(error).__name__}") from None


def _lines(body: BufferedIOBase) -> Iterator[bytes]:
    """Yield whole lines; what follows the last line end is dropped."""
    left = b""
    for data in _pieces(body):
        *lines, left = (left + data).split(b"\n")
        yield from lines
