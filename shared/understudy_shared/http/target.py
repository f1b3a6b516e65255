"""A request's target: path segments split *before* percent-decoding, query parameters without repeats (pure).

Splitting first is what lets a key contain a slash.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from understudy_shared.http.problems import Problem, ProblemError, ProblemType

MAX_TARGET_BYTES = 16 * 1024
"""Limit on a path, and on a query, that is parsed; longer keys come in a body."""

STORES = b"/v1/stores/"
"""Beginning of the target of every lookup."""

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPED_SLASH = re.compile(rb"%2[Ff]")


def refuse_unroutable(raw_path: bytes) -> None:
    """Raise the problem of a path that a framework, which decodes before it splits, may take for another.

    Escapes may stand in names (of a store, of a node) and in keys, and an escaped slash in keys only. Everywhere else a
    path has one way to be written: a proxy's rule about `/admin/` holds for everything that is routed there.
    """
    if b"%" not in raw_path and raw_path.isascii():
        return
    _refuse_too_long(raw_path, where="path")
    segments = raw_path.split(b"/")
    match segments:
        case [b"", b"v1", b"stores", *_]:
            name, first_key = 3, 5
        case [b"", b"admin", b"v1", b"nodes", *_]:
            name, first_key = 4, len(segments)
        case _:
            name, first_key = len(segments), len(segments)
    for index, segment in enumerate(segments):
        if index >= first_key or (index == name and not _ESCAPED_SLASH.search(segment)):
            _decode(segment, where="path")
        elif b"%" in segment or not segment.isascii():
            detail = f"{segment[:40]!r} is escaped where no name of a store or node and no key stands"
            fix = "Send the path as the documentation writes it; a slash is escaped in keys only"
            raise ProblemError(Problem(ProblemType.BAD_REQUEST, detail, where="path", fix=fix))


def split_path(raw_path: bytes) -> list[str]:
    """Split and decode: `b"/v1/stores/a%2Fb"` -> `["v1", "stores", "a/b"]`. Raises a problem if not UTF-8."""
    _refuse_too_long(raw_path, where="path")
    if b"%" not in raw_path and raw_path.isascii():  # most keys: nothing to decode
        return raw_path.decode().lstrip("/").split("/")
    return [_decode(segment, where="path") for segment in raw_path.lstrip(b"/").split(b"/")]


def parse_query(query: bytes) -> dict[str, str]:
    """Parse query parameters by name; a repeated name is refused, because the choice of one would be a guess."""
    _refuse_too_long(query, where="query")
    parameters: dict[str, str] = {}
    for part in query.split(b"&"):
        if not part:
            continue
        raw_name, _, raw_value = part.replace(b"+", b" ").partition(b"=")
        name = _decode(raw_name, where="query")
        if name in parameters:
            raise ProblemError(
                Problem(ProblemType.BAD_REQUEST, f"{name!r} is given twice", where="query", fix="Send it once")
            )
        parameters[name] = _decode(raw_value, where=f"query parameter {name!r}")
    return parameters


def _refuse_too_long(raw: bytes, *, where: str) -> None:
    if len(raw) > MAX_TARGET_BYTES:
        detail = f"the {where} has {len(raw)} bytes, above {MAX_TARGET_BYTES}"
        raise ProblemError(
            Problem(ProblemType.TOO_LARGE, detail, where=where, fix="POST long keys, in the body of a batch lookup")
        )


def _decode(raw: bytes, *, where: str) -> str:
    if _BROKEN_ESCAPE.search(raw):
        detail = f"{raw[:40]!r} has a percent sign that is not followed by two hexadecimal digits"
        raise ProblemError(
            Problem(ProblemType.BAD_REQUEST, detail, where=where, fix="Send a percent sign itself as %25")
        )
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        shown = raw[:40].decode("ascii", "backslashreplace")
        detail = f"'{shown}' is not percent-encoded UTF-8 ({error.reason})"
        raise ProblemError(
            Problem(ProblemType.BAD_REQUEST, detail, where=where, fix="Percent-encode the UTF-8 bytes of the text")
        ) from None
