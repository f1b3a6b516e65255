"""Parsing of a lookup's request, the same for nodes and routers (pure): keys from paths and JSON, bounds.

Targets repeat, so parsed ones are cached (`parsed_cache`).
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from understudy_shared.base.errors import BadKeyError
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import parse_query
from understudy_shared.reads.bounds import BadBoundError, Bound
from understudy_shared.settings import MAX_KEY_BYTES
from understudy_shared.spark.key_codec import KeyCodec, Row

ReadParams = Mapping[str, object]
"""The bound parameters of a request; `StoreBounds.bound` turns them into a bound."""


def key_and_params(codec: KeyCodec, form: list[str], query: bytes) -> tuple[Row, dict[str, str]]:
    """Return the key, and the other parameters, of `["keys", k1, k2, ...]` or `["lookup"]` with `?key=<JSON>`.

    Raises the problem of a request without a key.
    """
    parameters = parse_query(query)
    match form:
        case ["keys", *segments]:
            row = codec.parse_segments(_key_segments(segments))
        case _:
            row = codec.parse_json(_json_key(parameters.pop("key", None)))
    return row, parameters


def require_own_position(bound: Bound, application_id: str) -> Bound:
    """Return the bound. Refuse a position of another application, because no replica could compare with it."""
    for where, position in (("min_position", bound.min_position), ("snapshot", bound.snapshot)):
        if position is not None and position.application_id != application_id:
            raise ProblemError(
                Problem(
                    ProblemType.LINEAGE_CHANGED,
                    f"the position is of the application {position.application_id!r}, these stores are of "
                    f"{application_id!r}",
                    where=where,
                    fix="Send the `position` of an earlier answer of these stores",
                )
            )
    return bound


def encoded_key(codec: KeyCodec, row: Row, max_bytes: int) -> bytes:
    """Encode the key as UnsafeRow bytes. Raises a too-large problem above `max_bytes`."""
    encoded = codec.encode(row)
    if len(encoded) > max_bytes:
        detail = f"the key takes {len(encoded)} bytes, above {max_bytes}"
        fix = f"Raise max_key_bytes of the service, up to {MAX_KEY_BYTES}, if the query has such keys"
        raise ProblemError(Problem(ProblemType.TOO_LARGE, detail, where="key", fix=fix))
    return encoded


def pop_longs(parameters: dict[str, str]) -> bool:
    """Remove `longs` from the parameters of a request, and return whether whole numbers are printed as strings."""
    value = parameters.pop("longs", "number")
    if value not in ("number", "string"):
        raise BadBoundError(
            f"longs={value!r} is not a choice", where="longs", fix="Send longs=string, or longs=number (the default)"
        )
    return value == "string"


def longs_as_text(body: bytes) -> bytes:
    """Print an answer, the results of a batch, or the versions of a history, with every whole number in the key and the
    found values as a string.

    The type decides, not the size: a byte, short, int or long column is a string in every answer. A double has a
    decimal point in JSON, so it cannot be confused with these.
    """
    answer = orjson.loads(body)
    for each in (answer, *answer.get("results", ()), *answer.get("versions", ())):
        for part in _PRINTED_PARTS & each.keys():
            each[part] = numbers_as_text(each[part])
    return orjson.dumps(answer) + b"\n"


def numbers_as_text(value: object) -> object:
    """Return a JSON value with its whole numbers as strings."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict):
        return {name: numbers_as_text(inner) for name, inner in value.items()}
    return [numbers_as_text(inner) for inner in value] if isinstance(value, list) else value


_PRINTED_PARTS = frozenset({"key", "value", "result", "sessions", "rows", "values", "entries"})


def _key_segments(segments: list[str]) -> list[str]:
    if "" in segments:
        raise BadKeyError(
            "a path segment of the key is empty",
            where="path",
            fix="Use the exact form: lookup?key=<JSON array>, percent-encoded",
        )
    return segments


def _json_key(text: str | None) -> object:
    if text is None:
        raise BadKeyError(
            "there is no key", where="query", fix="Send lookup?key=<JSON array or object>, percent-encoded"
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadKeyError(
            f"the key is not JSON: {error}",
            where="query parameter 'key'",
            fix='Send for example key=["a",1], percent-encoded',
        ) from None


def unknown_path(raw_path: bytes) -> Problem:
    """Return a 404 that cannot be mistaken for an absent key."""
    return Problem(
        ProblemType.UNKNOWN_PATH,
        f"nothing is at {raw_path[:200].decode(errors='replace')}",
        fix="Try /v1/stores, /v1/stores/{store}/keys/{k1}/..., /v1/stores/{store}/lookup?key=..., /admin/v1/lag; "
        "/docs lists every call",
    )
