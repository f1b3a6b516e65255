"""A request's target: path segments split *before* percent-decoding, query parameters without repeats (pure).

Splitting first is what lets a key contain a slash.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from understudy_shared.problems import Problem, ProblemError, ProblemType

MAX_TARGET_BYTES = 16 * 1024
"""Longest path, and longest query, that is parsed: a key is at most 4 KiB, three times that when percent-encoded."""


def split_path(raw_path: bytes) -> list[str]:
    """`b"/v1/stores/a%2Fb"` -> `["v1", "stores", "a/b"]`. Raises a bad-request problem when not UTF-8."""
    _refuse_too_long(raw_path, where="path")
    if b"%" not in raw_path and raw_path.isascii():  # most keys: nothing to decode
        return raw_path.decode().lstrip("/").split("/")
    return [_decode(segment, where="path") for segment in raw_path.lstrip(b"/").split(b"/")]


def parse_query(query: bytes) -> dict[str, str]:
    """Query parameters by name; a repeated name is refused, because guessing which one counts would be a lie."""
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
            Problem(ProblemType.TOO_LARGE, detail, where=where, fix="Send keys in the body of a batch lookup")
        )


def _decode(raw: bytes, *, where: str) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        shown = raw[:40].decode("ascii", "backslashreplace")
        detail = f"'{shown}' is not percent-encoded UTF-8 ({error.reason})"
        raise ProblemError(
            Problem(ProblemType.BAD_REQUEST, detail, where=where, fix="Percent-encode the UTF-8 bytes of the text")
        ) from None
