"""The text form shared by Spark's metadata logs: a line `v<number>`, a line of JSON, further lines.

Rule: a field is present with the required type, or the file is corrupt; nothing is guessed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from understudy_shared.base.errors import CorruptFileError, UnsupportedError

Json = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its version tag, its JSON object, the lines after it."""

    tag: str
    body: Json
    rest: tuple[str, ...]


def parse_document(data: bytes, *, name: str, tags: Sequence[str]) -> Document:
    """Parse a document whose tag is one of `tags`; a newer tag is unsupported, anything else is corrupt."""
    _refuse_empty(data, name=name)
    try:
        tag, _, remainder = data.decode().partition("\n")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"Not text: {error.reason}", where=f"{name}, byte {error.start}") from error
    if not re.fullmatch(r"v\d+", tag):
        raise CorruptFileError("Does not start with a version line such as 'v1'", where=name)
    if tag not in tags:
        raise UnsupportedError(
            f"Version {tag} of this file is not supported",
            where=name,
            fix=f"Supported: {', '.join(tags)}. A newer Spark wrote it: use a newer Understudy",
        )
    body, _, rest = remainder.partition("\n")
    return Document(tag, parse_object(body.encode(), name=name), tuple(rest.split("\n")) if rest else ())


def parse_object(data: bytes, *, name: str) -> Json:
    """Parse a JSON object."""
    return checked(parse_json(data, name=name), dict, "the JSON text", name=name)


def parse_json(data: bytes, *, name: str) -> object:
    """Parse any JSON value."""
    _refuse_empty(data, name=name)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CorruptFileError(f"Not JSON: {error}", where=name) from error


def _refuse_empty(data: bytes, *, name: str) -> None:
    if not data:
        raise CorruptFileError(
            "The file is empty: it has 0 bytes",
            where=name,
            fix="Its write or its copy was cut off: put the file back, or copy the checkpoint again",
        )


def field(body: Json, key: str, kind: type[T], *, name: str) -> T:
    """Return a required field of the given type."""
    return checked(body.get(key), kind, repr(key), name=name)


def checked(value: object, kind: type[T], what: str, *, name: str) -> T:
    """Return `value` if it is a `kind` (a boolean is not an integer), else the file is corrupt."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CorruptFileError(f"{what} should be {kind.__name__}, but is {type(value).__name__}", where=name)
    return value
