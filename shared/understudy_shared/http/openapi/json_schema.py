"""Building blocks of JSON Schema 2020-12, in which OpenAPI 3.1 describes what a service takes and answers (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
TEXT_OR_NULL: Json = {"type": ["string", "null"]}
FLAG: Json = {"type": "boolean"}
COUNT: Json = {"type": "integer", "minimum": 0}
COUNT_OR_UNKNOWN: Json = {"type": ["integer", "null"], "minimum": 0}
"""null says that it is not known; a service never says 0 instead."""
NUMBER_OR_UNKNOWN: Json = {"type": ["number", "null"], "minimum": 0}
TIME: Json = {"type": "string", "format": "date-time"}
TIME_OR_UNKNOWN: Json = {"type": ["string", "null"], "format": "date-time"}
PORT: Json = {"type": "integer", "minimum": 0, "maximum": 65535}

_COMPONENTS = "#/components/"


def ref(name: str, **keywords: object) -> Json:
    """A shared schema, by name; keywords narrow it, which generators of clients do not read."""
    return {"$ref": f"{_COMPONENTS}schemas/{name}", **keywords}


def or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(items: Json) -> Json:
    return {"type": "array", "items": items}


def one_of(values: Iterable[str]) -> Json:
    """A text that is one of these."""
    return {"type": "string", "enum": list(values)}


def one_schema_of(*names: str) -> Json:
    """Build the schema of a value that fits exactly one of these shared schemas."""
    return {"oneOf": [ref(name) for name in names]}


def exactly(value: int | str) -> Json:
    """This value and no other, with its type: without one, generators of clients take any."""
    return {"type": "string" if isinstance(value, str) else "integer", "const": value}


def said(schema: Json, description: str) -> Json:
    """The schema with a sentence of its own."""
    return {**schema, "description": description}


def record(description: str, members: Json, optional: Json | None = None, *, is_closed: bool = False) -> Json:
    """An object. `members` are always there, `optional` ones may be left out; a closed one has no others.

    Answers are open: a later release may add members. Requests are closed: an unknown member is refused.
    """
    return {
        "type": "object",
        "description": description,
        **({"required": list(members)} if members else {}),
        "properties": {**members, **(optional or {})},
        **({"additionalProperties": False} if is_closed else {}),
    }


def references(document: object) -> Iterator[str]:
    """What a part of a document refers to: `schemas/Lag`, say."""
    if isinstance(document, dict):
        target = document.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(_COMPONENTS)
        for value in document.values():
            yield from references(value)
    elif isinstance(document, list):
        for value in document:
            yield from references(value)
