"""Parses Spark's state schema files down to the JSON texts of key and value schema.

v1 and v2 hold one schema pair; v3 holds one per column family, with ids and the key encoder. Strings are Java
"modified UTF-8", in chunks that may cut a surrogate pair in two. `understudy_shared.spark.types`
turns the JSON into types. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from understudy_node.checkpoint.logs import parse_object
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

DEFAULT_COLUMN_FAMILY = "default"
MAX_DIGITS = 15
"""Limit on the digits of a batch's number."""


@dataclass(frozen=True, slots=True)
class ColumnFamilySchema:
    """Schemas as JSON texts. `key_encoder` and `user_key_schema` are `None` where the file lacks them."""

    name: str
    key_schema_id: int
    key_schema: str
    value_schema_id: int
    value_schema: str
    key_encoder: str | None = None
    user_key_schema: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One schema file of a store. Its `name` begins with the batch that wrote it where Spark numbers files."""

    name: str
    families: tuple[ColumnFamilySchema, ...]

    @property
    def batch_id(self) -> int | None:
        """The first batch that wrote state with it; None if the name does not say."""
        number, separator, _ = self.name.partition("_")
        is_number = separator and len(number) <= MAX_DIGITS and number.isascii() and number.isdigit()
        return int(number) if is_number else None

    def family(self, name: str) -> ColumnFamilySchema | None:
        """Return the schemas of a column family; None where the file has no family of that name."""
        return next((family for family in self.families if family.name == name), None)


def parse_schema_file(data: bytes, *, name: str) -> tuple[ColumnFamilySchema, ...]:
    """Parse all column families of a schema file; v1 and v2 have one, named `default`."""
    reader = _DataInput(data, name)
    tag = reader.utf()
    families: tuple[ColumnFamilySchema, ...]
    if tag == "v1":
        families = (ColumnFamilySchema(DEFAULT_COLUMN_FAMILY, 0, reader.utf(), 0, reader.utf()),)
    elif tag == "v2":
        families = (ColumnFamilySchema(DEFAULT_COLUMN_FAMILY, 0, reader.chunked(), 0, reader.chunked()),)
    elif tag == "v3":
        families = tuple(_column_family(reader) for _ in range(reader.count()))
    else:
        raise UnsupportedError(
            f"Version {tag!r} of the state schema is not supported",
            where=name,
            fix="Supported: v1, v2, v3. A newer Spark wrote it: use a newer Understudy",
        )
    reader.end()
    return families


def _column_family(reader: _DataInput) -> ColumnFamilySchema:
    family = ColumnFamilySchema(
        name=reader.utf(),
        key_schema_id=reader.short(),
        key_schema=reader.chunked(),
        value_schema_id=reader.short(),
        value_schema=reader.chunked(),
        key_encoder=reader.chunked(),
        user_key_schema=reader.chunked(),
    )
    if parse_object((family.user_key_schema or "").encode(), name=reader.name):
        return family
    # Spark writes an empty object where there is no schema.
    return replace(family, user_key_schema=None)


class _DataInput:
    """A reader of the output of Java's `DataOutputStream`."""

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self._data = data
        self._position = 0

    def _take(self, length: int) -> bytes:
        taken = self._data[self._position : self._position + length]
        if len(taken) < length:
            raise CorruptFileError("The schema file is truncated", where=f"{self.name}, byte {len(self._data)}")
        self._position += length
        return taken

    def short(self) -> int:
        value = int(struct.unpack(">h", self._take(2))[0])
        if value < 0:
            raise CorruptFileError(
                f"A schema has the impossible number {value}", where=f"{self.name}, byte {self._position - 2}"
            )
        return value

    def count(self) -> int:
        """Read a count of items; refuse more than there are bytes."""
        value = int(struct.unpack(">i", self._take(4))[0])
        if not 0 <= value <= len(self._data):
            raise CorruptFileError(f"Impossible count {value}", where=f"{self.name}, byte {self._position - 4}")
        return value

    def utf(self) -> str:
        return self._text(self._utf_units())

    def chunked(self) -> str:
        # Java's writeUTF takes 65,535 bytes, so Spark cuts longer schemas. Joined before decoded: a cut may split a
        # character.
        return self._text("".join(self._utf_units() for _ in range(self.count())))

    def end(self) -> None:
        if self._position != len(self._data):
            raise CorruptFileError(
                "There are bytes after the end of the schema", where=f"{self.name}, byte {self._position}"
            )

    def _utf_units(self) -> str:
        """Read one modified UTF-8 string; characters outside the BMP are still two surrogates."""
        start = self._position
        (length,) = struct.unpack(">H", self._take(2))
        try:
            return self._take(length).replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise CorruptFileError(
                "Not modified UTF-8", where=f"{self.name}, byte {start + 2 + error.start}"
            ) from error

    def _text(self, units: str) -> str:
        try:
            return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise CorruptFileError(
                "A string has a lone surrogate", where=f"{self.name}, byte {self._position}"
            ) from error
