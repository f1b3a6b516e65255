"""The lookups in the OpenAPI document, the same for nodes and routers (pure).

They are served in front of FastAPI, which therefore does not know of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy_shared.bounds import MAX_WAIT_MS

if TYPE_CHECKING:
    from fastapi import FastAPI

Json = dict[str, Any]

_PROBLEM: Json = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "where": {"type": "string"},
        "fix": {"type": "string"},
        "candidates": {"type": "array", "items": {"type": "object"}},
    },
}
_NUMBER_OR_UNKNOWN: Json = {"type": ["integer", "null"], "minimum": 0}
_LOOKUP: Json = {
    "type": "object",
    "required": [
        "store",
        "key",
        "found",
        "partition",
        "version",
        "committed_at",
        "watermark",
        "lag",
        "served_by",
        "position",
    ],
    "properties": {
        "store": {"type": "string"},
        "key": {"type": "object"},
        "found": {"type": "boolean"},
        "value": {"type": "object"},
        "result": {"type": "object", "description": "what the query outputs, where it is known"},
        "partition": {"type": "integer", "minimum": 0},
        "version": {"type": "integer", "minimum": 1},
        "committed_at": {"type": ["string", "null"]},
        "watermark": {"type": ["string", "null"]},
        "lag": {
            "type": "object",
            "properties": {
                "current_offset_position": {"type": "integer"},
                "end_offset_position": _NUMBER_OR_UNKNOWN,
                "offset_lag": _NUMBER_OR_UNKNOWN,
                "time_lag_ms": _NUMBER_OR_UNKNOWN,
            },
        },
        "served_by": {"type": "object"},
        "marks": {"type": "array", "items": {"type": "string"}},
        "position": {"type": "string"},
    },
}
_FOUND_STATUS: Json = {"type": "integer", "enum": [200, 404]}
_BOUNDS: Json = {
    "max_lag": {"type": "integer", "minimum": 0, "description": "versions behind, inclusive"},
    "max_staleness_ms": {"type": "integer", "minimum": 0},
    "min_position": {"type": "string", "description": "the position of an earlier answer"},
    "require_active": {"type": "boolean"},
    "unknown_lag": {"type": "string", "enum": ["serve", "refuse"]},
    "wait_ms": {"type": "integer", "minimum": 0, "maximum": MAX_WAIT_MS},
}


def add_lookups(http: FastAPI) -> None:
    """Make `/openapi.json` complete."""
    generated = http.openapi

    def complete() -> dict[str, Any]:
        if http.openapi_schema is None:
            document = generated()
            document["paths"] |= lookup_paths()
        return http.openapi_schema or {}

    http.openapi = complete  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def lookup_paths() -> Json:
    """The `paths` of the lookups."""
    store = _parameter("store", "path", {"type": "string"})
    longs = _parameter(
        "longs",
        "query",
        {"type": "string", "enum": ["number", "string"]},
        "string: whole numbers of key, value and result are strings, for readers that hold numbers as doubles",
    )
    bounds = [*(_parameter(name, "query", schema) for name, schema in _BOUNDS.items()), longs]
    key_path = _parameter("key", "path", {"type": "string"}, "one percent-encoded segment per key column")
    key_json = _parameter("key", "query", {"type": "string"}, "a JSON array in schema order, or object by column name")
    batch = {
        "type": "object",
        "required": ["keys"],
        "additionalProperties": False,
        "properties": {
            "keys": {"type": "array", "maxItems": 1000},
            "bounds": {"type": "object", "properties": _BOUNDS, "additionalProperties": False},
        },
    }
    compact = _parameter(
        "compact",
        "query",
        {"type": "boolean", "default": False},
        "true: what the results of one partition share is said once, in `reads`",
    )
    lookup = {"200": _json("Found", _LOOKUP), "404": _json("Absent, or no such store", _LOOKUP)}
    return {
        "/v1/stores/{store}/keys/{key}": {
            "get": _call("Look one key up, friendly form", [store, key_path, *bounds], lookup)
        },
        "/v1/stores/{store}/lookup": {
            "get": _call("Look one key up, exact form", [store, {**key_json, "required": True}, *bounds], lookup),
            "post": {
                **_call(
                    "Look keys up, at most 1,000",
                    [store, longs, compact],
                    {"200": _json("A result per key, in order", {"oneOf": [_long_batch(), _compact_batch()]})},
                ),
                "requestBody": {"required": True, "content": {"application/json": {"schema": batch}}},
            },
        },
    }


def _long_batch() -> Json:
    """The answer to a batch: each result is whole."""
    found = {**_LOOKUP, "required": ["status", *_LOOKUP["required"]]}
    found["properties"] = {"status": _FOUND_STATUS, **_LOOKUP["properties"]}
    return {
        "type": "object",
        "required": ["results"],
        "additionalProperties": False,
        "properties": {"results": {"type": "array", "items": {"oneOf": [found, _PROBLEM]}}},
    }


def _compact_batch() -> Json:
    """The same, with what results share in `reads`."""
    members = _LOOKUP["properties"]
    own = {name: members[name] for name in ("key", "found", "value", "result")}
    found = {
        "type": "object",
        "required": ["status", "key", "found", "read"],
        "additionalProperties": False,
        "properties": {
            "status": _FOUND_STATUS,
            **own,
            "read": {"type": "integer", "minimum": 0, "description": "index of its read in `reads`"},
        },
    }
    shared = [name for name in _LOOKUP["required"] if name not in {"store", *own}]
    read = {
        "type": "object",
        "required": shared,
        "properties": {name: schema for name, schema in members.items() if name not in {"store", *own}},
    }
    return {
        "type": "object",
        "required": ["store", "reads", "results"],
        "additionalProperties": False,
        "properties": {
            "store": members["store"],
            "reads": {"type": "array", "items": read},
            "results": {"type": "array", "items": {"oneOf": [found, _PROBLEM]}},
        },
    }


def _parameter(name: str, place: str, schema: Json, description: str = "") -> Json:
    parameter: Json = {"name": name, "in": place, "required": place == "path", "schema": schema}
    return parameter | ({"description": description} if description else {})


def _call(summary: str, parameters: list[Json], answers: Json) -> Json:
    problem = {"description": "A problem", "content": {"application/problem+json": {"schema": _PROBLEM}}}
    return {"summary": summary, "parameters": parameters, "responses": answers | {"default": problem}}


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
