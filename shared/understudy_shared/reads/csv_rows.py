"""Lines of CSV (pure). Null is an empty field, an empty text is quoted, and what is nested is JSON."""

from __future__ import annotations

from collections.abc import Sequence

import orjson


def csv_row(values: Sequence[object]) -> bytes:
    """Return a line. Its first field is quoted where it would begin a comment."""
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
