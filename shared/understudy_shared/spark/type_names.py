"""Reads Spark's types back from their names, as `GET /v1/stores` shows them: `map<string,struct<a:long>>` (pure).

A name says all that decides how values print. It does not quote the fields of a struct, so a field whose own name has
colons or commas is found where exactly one reading makes sense, and else read by its shortest name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.texts import clipped
from understudy_shared.spark.types import ArrayType, Field, MapType, SparkType, StructType, parse_atom

MAX_NAME_DEPTH = 64
"""Limit on the types inside each other: as many structs as a schema may nest."""

MAX_COLONS = 16
"""Limit on the colons in the name of a field: each is a place where the name might end."""

_ATOM = re.compile(r"[A-Za-z_][A-Za-z_0-9 ]*(?:\([A-Za-z_0-9:, -]*\))?(?: collate [A-Za-z_.0-9]+)?")

_Found = tuple[SparkType, int]
"""A type, and where its name ends."""


def parse_type_name(text: str) -> SparkType:
    """Parse a type by its name. Raises UnsupportedError for a name that this release does not know."""
    try:
        found = _Names(text).type_at(0, 0)
    except RecursionError:
        found = None
    if found is None or found[1] != len(text):
        raise UnsupportedError(
            f"type {clipped(text)} is not known",
            where="the description of a store",
            fix="Use an understudy as new as that of the server",
        )
    return found[0]


class _Names:
    """A reader of one text. Each place is read once, so that a long name takes no more than linear time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: dict[int, _Found | None] = {}

    def type_at(self, start: int, depth: int) -> _Found | None:
        """Return the type whose name begins here; None where no type does."""
        if start not in self._known:
            self._known[start] = None if depth > MAX_NAME_DEPTH else self._read(start, depth)
        return self._known[start]

    def _read(self, start: int, depth: int) -> _Found | None:
        readers: tuple[tuple[str, Callable[[int, int], _Found | None]], ...] = (
            ("struct<", self._struct),
            ("array<", self._array),
            ("map<", self._map),
        )
        for word, read in readers:
            if self._text.startswith(word, start):
                return read(start + len(word), depth + 1)
        return self._atom(start)

    def _atom(self, start: int) -> _Found | None:
        matched = _ATOM.match(self._text, start)
        if matched is None:
            return None
        try:
            return parse_atom(matched[0]), matched.end()
        except UnsupportedError:
            return None

    def _array(self, start: int, depth: int) -> _Found | None:
        element = self.type_at(start, depth)
        if element is None or not self._text.startswith(">", element[1]):
            return None
        return ArrayType(element[0]), element[1] + 1

    def _map(self, start: int, depth: int) -> _Found | None:
        key = self.type_at(start, depth)
        if key is None or not self._text.startswith(",", key[1]):
            return None
        value = self.type_at(key[1] + 1, depth)
        if value is None or not self._text.startswith(">", value[1]):
            return None
        return MapType(key[0], value[0]), value[1] + 1

    def _struct(self, start: int, depth: int) -> _Found | None:
        fields: list[Field] = []
        if self._text.startswith(">", start):
            return StructType(), start + 1
        while True:
            found = self._field(start, depth)
            if found is None:
                return None
            field, end = found
            fields.append(field)
            if self._text[end] == ">":
                return StructType(tuple(fields)), end + 1
            start = end + 1

    def _field(self, start: int, depth: int) -> tuple[Field, int] | None:
        """Return the field that begins here, by the shortest name behind which there is a type and an end."""
        colon = start - 1
        for _ in range(MAX_COLONS):
            colon = self._text.find(":", colon + 1)
            if colon < 0:
                return None
            found = self.type_at(colon + 1, depth)
            if found is not None and self._text[found[1] : found[1] + 1] in {",", ">"}:
                return Field(self._text[start:colon], found[0]), found[1]
        return None
