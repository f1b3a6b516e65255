"""Spark SQL types as frozen values, read from Spark's schema JSON or from their names; and unique names of columns.

Pure. A type this release cannot read is refused by name when it is parsed, never half-read. `name` is the readable name
of a type, as `GET /v1/stores` shows it; two types are equal when equal bytes mean equal values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from understudy_shared.base.errors import CorruptFileError, UnsupportedError
from understudy_shared.base.texts import clipped

BINARY_COLLATION = "UTF8_BINARY"
MAX_SCHEMA_DEPTH = 192
"""Limit on the levels of JSON in a schema: 64 structs inside each other."""

MAX_SCHEMA_PARTS = 200_000
"""Limit on the objects, lists, names and numbers in a schema's JSON: a field has about six."""

MAX_LONG_DIGITS = 18
"""Precision up to which a decimal is one unscaled int64 in its slot; wider ones are bytes in the variable region."""


@dataclass(frozen=True)
class SparkType:
    """A Spark SQL type. Types without parameters get their name from `NAME`, and are equal to those of their class."""

    NAME: ClassVar[str] = ""

    @property
    def name(self) -> str:
        return self.NAME


class VoidType(SparkType):
    NAME = "void"


class BooleanType(SparkType):
    NAME = "boolean"


class IntegralType(SparkType):
    """A signed integer; `BITS` bounds it."""

    BITS: ClassVar[int] = 0


class ByteType(IntegralType):
    NAME = "byte"
    BITS = 8


class ShortType(IntegralType):
    NAME = "short"
    BITS = 16


class IntType(IntegralType):
    NAME = "int"
    BITS = 32


class LongType(IntegralType):
    NAME = "long"
    BITS = 64


class FloatType(SparkType):
    NAME = "float"


class DoubleType(SparkType):
    NAME = "double"


@dataclass(frozen=True)
class DecimalType(SparkType):
    precision: int
    scale: int

    @property
    def name(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    @property
    def is_wide(self) -> bool:
        return self.precision > MAX_LONG_DIGITS


@dataclass(frozen=True)
class StringType(SparkType):
    """Strings, char and varchar, always UTF-8. The collation decides equality, so it matters for keys."""

    collation: str = BINARY_COLLATION

    @property
    def name(self) -> str:
        return "string" if self.collation == BINARY_COLLATION else f"string collate {self.collation}"


@dataclass(frozen=True)
class BinaryType(SparkType):
    """Bytes. `opaque_as` is Spark's name of another type that is stored as bytes, which are shown as they are."""

    opaque_as: str = ""

    @property
    def name(self) -> str:
        return self.opaque_as or "binary"


class VariantType(SparkType):
    """Values of any type, stored as bytes and shown as JSON."""

    NAME = "variant"


class DateType(SparkType):
    NAME = "date"


class TimestampType(SparkType):
    NAME = "timestamp"


class TimestampNtzType(SparkType):
    NAME = "timestamp_ntz"


@dataclass(frozen=True)
class TimeType(SparkType):
    precision: int = 6

    @property
    def name(self) -> str:
        return f"time({self.precision})"


@dataclass(frozen=True)
class YearMonthIntervalType(SparkType):
    fields: str = "year to month"

    @property
    def name(self) -> str:
        return f"interval {self.fields}"


@dataclass(frozen=True)
class DayTimeIntervalType(SparkType):
    fields: str = "day to second"

    @property
    def name(self) -> str:
        return f"interval {self.fields}"


class CalendarIntervalType(SparkType):
    NAME = "interval"


@dataclass(frozen=True)
class Field:
    name: str
    type: SparkType
    nullable: bool = True


@dataclass(frozen=True)
class StructType(SparkType):
    fields: tuple[Field, ...] = ()

    @property
    def name(self) -> str:
        return f"struct<{','.join(f'{field.name}:{field.type.name}' for field in self.fields)}>"


@dataclass(frozen=True)
class ArrayType(SparkType):
    element: SparkType

    @property
    def name(self) -> str:
        return f"array<{self.element.name}>"


@dataclass(frozen=True)
class MapType(SparkType):
    key: SparkType
    value: SparkType

    @property
    def name(self) -> str:
        return f"map<{self.key.name},{self.value.name}>"


def parse_schema(json_text: str) -> StructType:
    """Parse Spark's schema JSON, as found in a state schema file or printed by `df.schema.json()`."""
    try:
        document = json.loads(json_text)
        _refuse_excess(document)
        parsed = _parse_type(document, {}, "")
    except RecursionError as error:
        raise _too_deep() from error
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"it is not a Spark schema: {error!r}", where=_clip(json_text)) from error
    if not isinstance(parsed, StructType):
        raise CorruptFileError(f"a schema is a struct, this is {parsed.name}", where=_clip(json_text))
    return parsed


def _refuse_excess(document: object) -> None:
    """Raise UnsupportedError for a schema that would exhaust the stack, or take seconds to read."""
    level, depth, parts = [document], 0, 0
    while level:
        depth += 1
        parts += len(level)
        if depth > MAX_SCHEMA_DEPTH:
            raise _too_deep()
        if parts > MAX_SCHEMA_PARTS:
            raise UnsupportedError(
                f"it has more than {MAX_SCHEMA_PARTS} parts",
                where="schema",
                fix="Keep fewer columns in the state of this operator, or in a binary one",
            )
        nodes = [node for node in level if isinstance(node, dict | list)]
        level = [part for node in nodes for part in (node.values() if isinstance(node, dict) else node)]


def _too_deep() -> UnsupportedError:
    return UnsupportedError(
        f"it is nested too deeply: it has more than {MAX_SCHEMA_DEPTH} levels of JSON",
        where="schema",
        fix="Store a flatter structure",
    )


def field_count(struct: StructType) -> int:
    """Count the fields at every depth, elements of arrays and maps among them."""
    return sum(1 + _fields_in(field.type) for field in struct.fields)


def _fields_in(spark_type: SparkType) -> int:
    match spark_type:
        case StructType():
            return field_count(spark_type)
        case ArrayType(element):
            return 1 + _fields_in(element)
        case MapType(key, value):
            return 2 + _fields_in(key) + _fields_in(value)
        case _:
            return 0


def opaque_columns(struct: StructType) -> tuple[str, ...]:
    """List the columns that hold, at any depth, values that have no order and no equality: these cannot be keys."""
    return tuple(
        field.name
        for field in struct.fields
        if any(
            isinstance(each, VariantType) or (isinstance(each, BinaryType) and each.opaque_as)
            for each in _atoms_in(field.type)
        )
    )


def collated_columns(struct: StructType) -> tuple[str, ...]:
    """List the columns that hold, at any depth, strings not compared by their bytes: these cannot be keys."""
    return tuple(
        field.name
        for field in struct.fields
        if any(isinstance(each, StringType) and each.collation != BINARY_COLLATION for each in _atoms_in(field.type))
    )


def _atoms_in(spark_type: SparkType) -> Iterator[SparkType]:
    """Yield the types at every depth that hold no other types."""
    match spark_type:
        case StructType(fields):
            for field in fields:
                yield from _atoms_in(field.type)
        case ArrayType(element):
            yield from _atoms_in(element)
        case MapType(key, value):
            yield from _atoms_in(key)
            yield from _atoms_in(value)
        case _:
            yield spark_type


_ATOMS: dict[str, SparkType] = {
    atom.name: atom
    for atom in (
        VoidType(),
        BooleanType(),
        ByteType(),
        ShortType(),
        IntType(),
        LongType(),
        FloatType(),
        DoubleType(),
        StringType(),
        BinaryType(),
        VariantType(),
        DateType(),
        TimestampType(),
        TimestampNtzType(),
        CalendarIntervalType(),
    )
} | {
    "null": VoidType(),
    "integer": IntType(),
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "bigint": LongType(),
    "calendarinterval": CalendarIntervalType(),
    "decimal": DecimalType(10, 0),
    "time": TimeType(),
}

_PARAMETRISED: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], SparkType]], ...] = (
    (re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)"), lambda m: DecimalType(int(m[1]), int(m[2]))),
    (re.compile(r"(?:geometry|geography)(?:\([\w:, ]*\))?"), lambda m: BinaryType(m[0])),
    (re.compile(r"(?:var)?char\(\s*\d+\s*\)"), lambda _: StringType()),
    (re.compile(r"time\(\s*(\d+)\s*\)"), lambda m: TimeType(int(m[1]))),
    (re.compile(r"interval ((?:year|month)(?: to month)?)"), lambda m: YearMonthIntervalType(m[1])),
    (
        re.compile(r"interval ((?:day|hour|minute|second)(?: to (?:hour|minute|second))?)"),
        lambda m: DayTimeIntervalType(m[1]),
    ),
)
_COLLATED = re.compile(r"(?:string|(?:var)?char\(\s*\d+\s*\)) collate (?:[A-Za-z]+\.)?(\w+)", re.IGNORECASE)


def _parse_type(node: object, collations: Mapping[str, str], path: str) -> SparkType:
    """Parse a type. `collations` are the enclosing field's metadata: Spark writes collated strings as "string"."""
    if isinstance(node, str):
        parsed = parse_atom(node, path)
        collation = collations.get(path, "")
        return StringType(collation.rpartition(".")[2]) if collation and isinstance(parsed, StringType) else parsed
    if not isinstance(node, dict):
        raise TypeError(f"{node!r} is not a type")
    match node["type"]:
        case "struct":
            return StructType(tuple(_parse_field(field) for field in node["fields"]))
        case "array":
            return ArrayType(_parse_type(node["elementType"], collations, f"{path}.element"))
        case "map":
            key = _parse_type(node["keyType"], collations, f"{path}.key")
            return MapType(key, _parse_type(node["valueType"], collations, f"{path}.value"))
        case "udt":
            return _parse_type(node["sqlType"], collations, path)
        case other:
            raise _unsupported(str(other), path)


def _parse_field(node: Mapping[str, object]) -> Field:
    name = node["name"]
    metadata = node.get("metadata")
    collations = metadata.get("__COLLATIONS", {}) if isinstance(metadata, dict) else {}
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not a field name")
    return Field(name, _parse_type(node["type"], collations, name), bool(node.get("nullable", True)))


def parse_atom(text: str, path: str = "") -> SparkType:
    """Parse the name of a type that holds no other types. `path` names the column in messages."""
    lowered = text.strip().lower()
    atom = _ATOMS.get(lowered)
    if atom is not None:
        return atom
    for pattern, build in _PARAMETRISED:
        found = pattern.fullmatch(lowered)
        if found:
            return build(found)
    collated = _COLLATED.fullmatch(text.strip())
    if collated:
        return StringType(collated[1].upper())
    raise _unsupported(text, path)


def _unsupported(type_name: str, path: str) -> UnsupportedError:
    return UnsupportedError(
        f"type {type_name} is not supported",
        where=f"column {path}" if path else "schema",
        fix="Cast the column to a supported type (for variant: to string, with to_json) before the stateful operator",
    )


def _clip(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


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


def schema_json(schema: StructType) -> bytes:
    """Return the JSON of a schema, in ASCII. Elements of arrays and maps may be null: types do not say whether."""
    return json.dumps(_type(schema)).encode("ascii")


def _type(spark_type: SparkType) -> object:
    match spark_type:
        case StructType(fields):
            return {"type": "struct", "fields": [_field(each) for each in fields]}
        case ArrayType(element):
            return {"type": "array", "elementType": _type(element), "containsNull": True}
        case MapType(key, value):
            return {"type": "map", "keyType": _type(key), "valueType": _type(value), "valueContainsNull": True}
        case _:
            return spark_type.name


def _field(field: Field) -> object:
    return {"name": field.name, "type": _type(field.type), "nullable": field.nullable, "metadata": {}}


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Make names unique: the first of equal names stays, later ones get `_2`, `_3`, ... and skip every name that exists
    already.
    """
    originals = tuple(names)
    taken = set(originals)
    seen: set[str] = set()
    unique: list[str] = []
    for original in originals:
        name = original
        if original in seen:
            suffix = 2
            while (name := f"{original}_{suffix}") in taken:
                suffix += 1
            taken.add(name)
        seen.add(original)
        unique.append(name)
    return tuple(unique)
