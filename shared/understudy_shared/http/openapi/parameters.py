"""What reads take: stores, keys and bounds, as parameters of a request and as members of a body (pure)."""

from __future__ import annotations

from understudy_shared.http.openapi.calls import path_parameter, query_parameter
from understudy_shared.http.openapi.json_schema import FLAG, TEXT, Json, one_of, ref, said
from understudy_shared.reads.bounds import MAX_LIMIT, MAX_WAIT_MS, UnknownLag
from understudy_shared.reads.cursor import MAX_CURSOR_CHARS
from understudy_shared.reads.cursor import PREFIX as CURSOR_PREFIX
from understudy_shared.reads.position import MAX_TOKEN_CHARS, PREFIX
from understudy_shared.reads.selection import MAX_PAGE_ELEMENTS

EXAMPLE_STORE, EXAMPLE_KEY = "aircraft", "N14228"

_POSITION = rf"{PREFIX[:-1]}\.[A-Za-z0-9_-]+"
_LIMITS = {"max_lag": MAX_LIMIT, "max_staleness_ms": MAX_LIMIT, "wait_ms": MAX_WAIT_MS, "limit": MAX_PAGE_ELEMENTS}
_LEAST = {"limit": 1}

BOUNDS = {
    "max_lag": "Refuse an answer that is more than so many versions behind. Unknown lag counts as more.",
    "max_staleness_ms": "Refuse an answer whose time lag is above so many milliseconds. Unknown lag counts as above.",
    "min_position": "Refuse an answer that is older than the answer whose `position` this is.",
    "require_active": "Accept an answer from the active replica only.",
    "unknown_lag": "Whether a replica of unknown lag may answer. Without it: to readers without a lag bound it may.",
    "wait_ms": "How long to wait for `min_position`: 200 by default. Without a position nothing is waited for.",
    "limit": "At most so many elements of a key: of a list that is longer `next_cursor` says where the next page "
    f"begins. {MAX_PAGE_ELEMENTS:,} by default. A page ends earlier when it has 1 MiB.",
    "cursor": "The `next_cursor` of the page before. All pages are of one version; when no replica holds it any more, "
    "the answer is 410.",
    "include_expired": "false: what the watermark has surely outlived is left out, though Spark has not removed it "
    "yet. true by default.",
}
OF_A_BATCH = tuple(name for name in BOUNDS if name != "cursor")
"""A cursor is of one key."""
_TAKE_BACK = " `none` takes back the default of the store."


def bounds_schema() -> Json:
    """`Bounds`: the bounds of a batch. What is null or left out is the store's default."""
    return {
        "type": "object",
        "description": "What a reader accepts. Without any, every replica may answer. `none` or null takes back the "
        "default of the store.",
        "additionalProperties": False,
        "properties": {name: said(_or_default(_of(name)), text) for name, text in BOUNDS.items() if name in OF_A_BATCH},
        "example": {"max_lag": 5},
    }


def position_schema() -> Json:
    """A position token, as answers give it. A reader sends it as it is."""
    return {"type": "string", "format": "position", "pattern": f"^{_POSITION}$", "maxLength": MAX_TOKEN_CHARS}


def cursor_schema() -> Json:
    """A cursor, as answers give it. A reader sends it as it is."""
    pattern = rf"^{CURSOR_PREFIX[:-1]}\.[A-Za-z0-9_-]+$"
    return {"type": ["string", "null"], "format": "cursor", "pattern": pattern, "maxLength": MAX_CURSOR_CHARS}


def parameters() -> Json:
    """The shared parameters, by the names that `shared` takes."""
    bounds = {name: query_parameter(name, text + _TAKE_BACK, _of(name)) for name, text in BOUNDS.items()}
    return {
        "store": path_parameter(
            "store", "The store's name, as `GET /v1/stores` lists it", EXAMPLE_STORE, pattern="^[^/]+$"
        ),
        "key": path_parameter(
            "key",
            "A percent-encoded segment for each key column, in schema order; a window is two segments, its start and "
            "its end. A slash within a column is `%2F`. Nulls, empty texts, structs and arrays need the exact form.",
            EXAMPLE_KEY,
        ),
        "key_json": _key_as_json(is_required=True),
        "key_json_optional": _key_as_json(is_required=False),
        **bounds,
        "longs": query_parameter(
            "longs",
            "`string`: each byte, short, int and long in `key`, `value` and `result` is a string. JavaScript and jq "
            "hold numbers as doubles, and change a long above 2^53 silently.",
            {"type": "string", "enum": ["number", "string"], "default": "number"},
        ),
        "compact": query_parameter(
            "compact",
            "true: what the results of one partition share is said once, in `reads`.",
            {**FLAG, "default": False},
        ),
    }


def shared(*names: str) -> tuple[Json, ...]:
    """References to shared parameters."""
    return tuple({"$ref": f"#/components/parameters/{name}"} for name in names)


def _key_as_json(*, is_required: bool) -> Json:
    return {
        "name": "key",
        "in": "query",
        "required": is_required,
        "description": "The key as JSON, percent-encoded: an array in schema order, or an object by column name.",
        "schema": {**TEXT, "contentMediaType": "application/json", "contentSchema": ref("Key")},
        "example": f'["{EXAMPLE_KEY}"]',
    }


def _of(name: str) -> Json:
    """The type of a bound. The services also accept it as text, as boolean words of Python and SQL, and `none`."""
    if name in _LIMITS:
        return {"type": "integer", "minimum": _LEAST.get(name, 0), "maximum": _LIMITS[name]}
    if name in {"require_active", "include_expired"}:
        return FLAG
    if name == "unknown_lag":
        return one_of([*map(str, UnknownLag), "none"])
    return {**TEXT, "format": "cursor" if name == "cursor" else "position"}


def _or_default(schema: Json) -> Json:
    """The schema, or null for the default of the store."""
    more = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **more}
