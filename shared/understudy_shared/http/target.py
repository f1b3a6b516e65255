"""A request's target: path segments split *before* percent-decoding, query parameters without repeats (pure).

Because the path is split first, a key can contain a slash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from understudy_shared.base.texts import clipped
from understudy_shared.http.problems import Problem, ProblemError, ProblemType

MAX_TARGET_BYTES = 16 * 1024
"""Limit on a path, and on a query. Longer keys must be sent in a body."""

STORES = b"/v1/stores/"
"""Beginning of the target of every lookup."""

SCAN = b"/scan"
"""End of the path of every page of a scan."""

LISTS_OF_APPLICATIONS = (b"/v1/applications", b"/admin/v1/applications")

APPLICATIONS = b"/v1/applications/"
"""Beginning of the targets that name their application."""

APPLICATION_HEADER = b"understudy-application"
"""The header of an internal call that names its application, percent-encoded. Only fleets read it."""

FILE_ENDINGS = ("parquet", "arrow", "arrows", "csv", "ndjson")
"""The endings of a store's name in the paths of its files."""

_ROOTS = ((APPLICATIONS, b"/v1"), (b"/admin/v1/applications/", b"/admin/v1"), (b"/admin/applications/", b"/admin"))
"""The beginnings of paths that name an application, each with the beginning of the same path without the name."""

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPED_SLASH = re.compile(rb"%2[Ff]")


def application_target(target: bytes) -> tuple[bytes | None, bytes]:
    """Split the application from a target: `/v1/applications/a/stores/s` -> `a` (not decoded), `/v1/stores/s`.

    Return None and the unchanged target if it names no application, or nothing below one.
    """
    for beginning, root in _ROOTS:
        if target.startswith(beginning):
            name, slash, rest = target[len(beginning) :].partition(b"/")
            if name and slash and b"?" not in name:
                return name, b"%b/%b" % (root, rest)
    return None, target


def named_store(segment: str) -> tuple[str, str]:
    """Return the store of the last segment of a path, and the ending of its file, or "": `a.csv` -> `a`, `csv`.

    A store whose own name has such an ending is described only in the list of stores.
    """
    name, _, ending = segment.rpartition(".")
    return (name, ending) if name and ending in FILE_ENDINGS else (segment, "")


def may_be_page(target: bytes) -> bool:
    """Whether a GET may be for a page of a scan. The other answers without ASGI are never compressed."""
    return target.partition(b"?")[0].endswith(SCAN)


def named_application(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the application that the headers of an internal call name, percent-encoded."""
    return next((value for name, value in headers if name == APPLICATION_HEADER), None)


def application_name(segment: bytes) -> str:
    """Decode the segment of a path that names an application. Raises a problem."""
    return _decode(segment, where="path")


def unknown_application(name: str) -> Problem:
    """Return the problem of an unknown application. It names no others, because the credential may not see all."""
    fix = "GET /v1/applications lists those that your credential shows"
    return Problem(ProblemType.UNKNOWN_APPLICATION, f"there is no application {clipped(name)}", "path", fix)


def refuse_unroutable(raw_path: bytes) -> None:
    """Raise a problem for a path that a framework, which decodes before it splits, may take for another.

    Escapes are allowed in names (of a store, of a node) and in keys, an escaped slash only in keys. All other parts of
    a path have exactly one spelling, so a proxy's rule about `/admin/` applies to everything that is routed there.
    """
    if b"%" not in raw_path and raw_path.isascii():
        return
    _refuse_too_long(raw_path, where="path")
    application, raw_path = application_target(raw_path)
    if application is not None and not _ESCAPED_SLASH.search(application):
        _decode(application, where="path")
    elif application is not None:
        raise _escaped(application)
    segments = raw_path.split(b"/")
    match segments:
        case [b"", b"v1", b"applications", _]:
            name, first_key = 3, len(segments)
        case [b"", b"v1", b"stores", *_]:
            name, first_key = 3, 5
        case [b"", b"admin", b"v1", b"nodes" | b"applications", *_]:
            name, first_key = 4, len(segments)
        case _:
            name, first_key = len(segments), len(segments)
    for index, segment in enumerate(segments):
        if index >= first_key or (index == name and not _ESCAPED_SLASH.search(segment)):
            _decode(segment, where="path")
        elif b"%" in segment or not segment.isascii():
            raise _escaped(segment)


def _escaped(segment: bytes) -> ProblemError:
    detail = f"{segment[:40]!r} is escaped where no name of an application, store or node and no key stands"
    fix = "Send the path as the documentation writes it; a slash is escaped in keys only"
    return ProblemError(Problem(ProblemType.BAD_REQUEST, detail, where="path", fix=fix))


def split_path(raw_path: bytes) -> list[str]:
    """Split and decode: `b"/v1/stores/a%2Fb"` -> `["v1", "stores", "a/b"]`. Raises a problem if not UTF-8."""
    _refuse_too_long(raw_path, where="path")
    if b"%" not in raw_path and raw_path.isascii():  # most keys: nothing to decode
        return raw_path.decode().lstrip("/").split("/")
    return [_decode(segment, where="path") for segment in raw_path.lstrip(b"/").split(b"/")]


def parse_query(query: bytes) -> dict[str, str]:
    """Parse query parameters by name. A repeated name is refused, because choosing one value would be a guess."""
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
