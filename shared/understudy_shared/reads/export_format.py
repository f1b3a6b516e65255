"""The formats of an export, and the lines of its text formats besides the rows (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import orjson

from understudy_shared.base.texts import clipped
from understudy_shared.reads.bounds import BadBoundError


def csv_row(values: Sequence[object]) -> bytes:
    """Return a line of CSV. Its first field is quoted if it would begin a comment."""
    return b",".join([csv_field(value, is_first=not at) for at, value in enumerate(values)]) + b"\n"


def csv_field(value: object, *, is_first: bool) -> bytes:
    """Return a field. Null is empty; `is_first`: of the first column."""
    if value is None:
        return b""
    text = value.encode() if isinstance(value, str) else orjson.dumps(value)
    is_special = not text or any(each in text for each in (b",", b'"', b"\n", b"\r"))
    if is_special or text[:1] in b" \t" or text[-1:] in b" \t" or (is_first and text[:1] == b"#"):
        return b'"%b"' % text.replace(b'"', b'""')
    return text


class ExportFormat(StrEnum):
    """The format of an export."""

    NDJSON = "ndjson"
    """A JSON object in each line."""
    CSV = "csv"
    ARROW = "arrow"
    """An Arrow IPC stream."""


MEDIA_TYPES: Final[Mapping[ExportFormat, str]] = {
    ExportFormat.NDJSON: "application/x-ndjson",
    ExportFormat.CSV: "text/csv; charset=utf-8; header=present",
    ExportFormat.ARROW: "application/vnd.apache.arrow.stream",
}

_ACCEPTED: Final[Mapping[str, ExportFormat]] = {
    "application/x-ndjson": ExportFormat.NDJSON,
    "application/ndjson": ExportFormat.NDJSON,
    "application/jsonl": ExportFormat.NDJSON,
    "text/csv": ExportFormat.CSV,
    "application/vnd.apache.arrow.stream": ExportFormat.ARROW,
}
_MAX_ACCEPT_CHARS: Final = 512


def parse_format(given: object, accept: str = "") -> ExportFormat:
    """Return the format that the member `format` names, else the first known one in an `Accept`, else NDJSON. Raises
    BadBoundError for an unknown one.
    """
    if given is not None:
        try:
            return ExportFormat(str(given))
        except ValueError:
            fix = f"Send one of {', '.join(ExportFormat)}"
            raise BadBoundError(f"there is no format {clipped(given)}", where="format", fix=fix) from None
    for each in accept[:_MAX_ACCEPT_CHARS].lower().split(","):
        found = _ACCEPTED.get(each.partition(";")[0].strip())
        if found is not None:
            return found
    return ExportFormat.NDJSON


def ndjson_line(member: str, content: object) -> bytes:
    """Return a line that is not a row: `export`, `cursor`, `end` or `error`."""
    return orjson.dumps({member: content}, option=orjson.OPT_APPEND_NEWLINE)


def csv_line(member: str, content: object) -> bytes:
    """Return the same as a comment, for the end of a CSV."""
    return b"# %b %b\n" % (member.encode(), orjson.dumps(content))
