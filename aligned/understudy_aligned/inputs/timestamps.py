"""The rules of the option `timestamp`, and the reading of timestamps by them, in the planner and on executors.

Values of Avro and Protobuf are decoded only up to the timestamp, by a schema that the user gives. Decoders raise
whatever their packages raise for bytes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from typing import Any, Literal

import orjson

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix

Encoding = Literal["json", "avro", "protobuf"]
Kind = Literal["record", "header", Encoding]

LEAST_TIME_MS = -62_135_596_800_000
END_TIME_MS = 253_402_300_800_000
"""The years 1 to 9999, the range of Spark's timestamps. A record outside it is a poison record."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """An Avro schema, or Protobuf descriptors and a message's name: what a decoder of values needs."""

    content: bytes = field(repr=False)
    message: str = ""
    is_framed: bool = False
    """Whether the schema registry's header stands before each value."""

    file: str = ""
    """The file from which it was read, as the option names it."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, in hexadecimal digits."""
        return sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """The place from which the timestamps of a topic come.

    `record`: the input gives them (a Kafka record's own, the first half of a stream entry's ID). `header`: the last
    header of the name `place`. Otherwise `place` is a field of the value, or a JSON Pointer (RFC 6901) into it. The
    field holds milliseconds since the epoch, ISO 8601 (UTC if it names no zone), or a timestamp of the encoding.
    """

    kind: Kind = "record"
    place: str = ""
    schema: ValueSchema | None = None

    @property
    def is_record_time(self) -> bool:
        """Whether the input gives the timestamps."""
        return self.kind == "record"

    @property
    def text(self) -> str:
        """The rule without its schema: two with equal texts read the same field."""
        if self.is_record_time:
            return self.kind
        framed, message = "", ""
        if self.schema is not None:
            framed, message = "confluent-" * self.schema.is_framed, self.schema.message
        return f"{framed}{self.kind}:{message}{self.place}"


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """The rule of each topic: its own, or the one that all others have."""

    default: TimestampRule = field(default_factory=TimestampRule)
    own: tuple[tuple[str, TimestampRule], ...] = ()

    def of(self, topic: str) -> TimestampRule:
        return next((rule for name, rule in self.own if name == topic), self.default)

    @property
    def text(self) -> str:
        """The rules without their schemas: `record,weather:json:at`."""
        own = sorted((topic, rule.text) for topic, rule in self.own)
        return ",".join([self.default.text, *(f"{topic}:{text}" for topic, text in own if text != self.default.text)])


_MAGIC_AND_ID_BYTES = 5
"""Bytes that the schema registry's serializers write first: a zero, and the schema's id."""

_MOST_VARINT_BYTES = 10
"""Most bytes of a number of variable length. A longer one would be computed for minutes."""

_TIMESTAMP = "google.protobuf.Timestamp"


def avro_decoder(schema: ValueSchema, names: Sequence[str]) -> Callable[[bytes], object]:
    """Return a decoder of values in Avro's binary encoding, up to the field that begins a path.

    Raises SettingsError if the schema is invalid, or could crash the process.
    """
    from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415  # the caller says what to install

    try:
        whole: Any = parse_schema(orjson.loads(schema.content))
    except Exception as error:  # fastavro has no base class of its errors
        raise _unusable(error, fix="Give an Avro schema in JSON, as in an .avsc file") from error
    _check_path(whole, names)
    parsed = _up_to_field(whole, names[0])
    _check_bounded(parsed, frozenset(), {})
    return lambda value: schemaless_reader(BytesIO(_message(value) if schema.is_framed else value), parsed, None)


def _check_path(schema: Any, names: Sequence[str]) -> None:
    """Raise SettingsError if a record on the path lacks the next field. The check ends at a union or a list."""
    for name in names:
        if not isinstance(schema, dict) or "fields" not in schema:
            return
        types = {each["name"]: each["type"] for each in schema["fields"]}
        if name not in types:
            raise _unusable(f"{schema['name']} has no field '{name}'", fix="Name the fields from outside in: /a/b")
        schema = types[name]


def _up_to_field(schema: Any, name: str) -> Any:
    """Leave out the fields of a record after this one: their bytes come after it in a value, too."""
    if not isinstance(schema, dict) or "fields" not in schema:
        return schema
    names = [each["name"] for each in schema["fields"]]
    return {**schema, "fields": schema["fields"][: names.index(name) + 1]}


def _check_bounded(schema: Any, within: Set[str], named: dict[str, Any]) -> None:
    """Raise SettingsError if a short value could decode to any depth or length.

    The decoder is in C and checks neither: a deep value overflows the stack, which ends the process. `within` are the
    records around a parsed schema, and `named` gets the types that it defines.
    """
    if isinstance(schema, str) and schema in within:
        raise _unusable(f"'{schema}' contains itself, and a deep value would end the query", fix=_WRITE_FIRST)
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = schema
        within = within | {schema["name"]}
    for each in _inner_types(schema):
        _check_bounded(each, within, named)
    if isinstance(schema, dict) and "items" in schema and _is_without_bytes(schema["items"], named):
        raise _unusable("an array has items that take no bytes, so its length has no bound", fix=_WRITE_FIRST)


def _inner_types(schema: Any) -> Sequence[Any]:
    match schema:
        case list():
            return schema
        case {"fields": fields}:
            return [each["type"] for each in fields]
        case {"items": inner} | {"values": inner} | {"type": (dict() | list()) as inner}:
            return [inner]
        case _:
            return []


def _is_without_bytes(schema: Any, named: Mapping[str, Any]) -> bool:
    """Whether a value of a parsed schema without recursion takes no bytes. A value of a union takes at least one."""
    match schema:
        case str():
            return schema == "null" or (schema in named and _is_without_bytes(named[schema], named))
        case {"fields": fields}:
            return all(_is_without_bytes(each["type"], named) for each in fields)
        case {"type": "fixed", "size": size}:
            return bool(size == 0)
        case {"type": inner}:
            return _is_without_bytes(inner, named)
        case _:
            return False


_WRITE_FIRST = "Let the timestamp's field stand before it in the schema, or take the time from a header"


def protobuf_reader(schema: ValueSchema, names: Sequence[str]) -> Callable[[bytes], object]:
    """Return a function that finds a field in an encoded message. Raises SettingsError if there is no such field.

    An unset field has no time. That includes a field without presence whose value is 0.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(schema.content).file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(schema.message)
    except Exception as error:  # DecodeError, TypeError, KeyError
        fix = "Give what protoc --include_imports --descriptor_set_out writes, and the message's full name"
        raise _unusable(error, fix=fix) from error
    fields = _fields_on_the_way(descriptor, names)
    make = message_factory.GetMessageClass(descriptor)

    def read(value: bytes) -> object:
        found = make.FromString(_behind_indexes(_message(value)) if schema.is_framed else value)
        for each in fields:
            if each.has_presence and not found.HasField(each.name):
                return None
            found = getattr(found, each.name)
        if fields[-1].message_type is not None:
            return found.seconds * 1000 + found.nanos // 1_000_000
        return found if fields[-1].has_presence else found or None

    return read


def _fields_on_the_way(descriptor: Any, names: Sequence[str]) -> list[Any]:
    """Return the descriptors of the fields of a path, which ends at a number, a text, or a Timestamp."""
    fields: list[Any] = []
    for name in names:
        found = None if descriptor is None else descriptor.fields_by_name.get(name)
        if found is None or found.is_repeated:
            of = "a field that is not a message" if descriptor is None else descriptor.full_name
            raise _unusable(f"{of} has no single field '{name}'", fix="Name the fields from outside in: /a/b")
        fields.append(found)
        descriptor = found.message_type
    if descriptor is not None and descriptor.full_name != _TIMESTAMP:
        raise _unusable(f"'{names[-1]}' is a {descriptor.full_name}", fix="Name one of its fields, too: /a/b")
    last = fields[-1]
    if last.type in (last.TYPE_BYTES, last.TYPE_BOOL, last.TYPE_ENUM):
        raise _unusable(f"'{names[-1]}' is neither a number, a text nor a Timestamp", fix="Name another field")
    return fields


def _unusable(error: object, *, fix: str) -> SettingsError:
    return SettingsError(f"the schema cannot be used: {error}", where="option timestamp", fix=fix)


def _message(value: bytes) -> bytes:
    """Return the value after the registry's header. Raises ValueError for a value without a header."""
    if value[:1] != b"\0":
        raise ValueError("the value does not begin with a header of a schema registry")
    return value[_MAGIC_AND_ID_BYTES:]


def _behind_indexes(message: bytes) -> bytes:
    """Return the message after its indexes and their number, by which the registry says which message type it is."""
    count, at = _zigzag(message, 0)
    for _ in range(count):
        _, at = _zigzag(message, at)
    return message[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends. Raises ValueError for one that is too long."""
    number = 0
    for index in range(_MOST_VARINT_BYTES):
        byte = value[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # the bit that says that more bytes follow
            return (number >> 1) ^ -(number & 1), at + index + 1
    raise ValueError("a number is too long")


Headers = Sequence[tuple[str, bytes | None]]

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_MOST_RULES = 64
_LONG_BYTES = 8


def value_times_ms(rule: TimestampRule, values: Sequence[bytes | None]) -> list[int | None]:
    """Return the timestamps in values, in epoch milliseconds; None for a poison record, which has no usable one."""
    read = _reader(rule)
    return [_time_in(value, read) for value in values]


def header_time_ms(rule: TimestampRule, headers: Headers | None) -> int | None:
    """Return the timestamp in the headers: text, or a long of 8 bytes as Kafka's LongSerializer writes it."""
    found = next((value for name, value in reversed(headers or ()) if name == rule.place), None)
    if found is None:
        return None
    with suppress(ValueError, OverflowError):
        text = found.decode()
        return _within(int(text)) if text.isdecimal() else _epoch_ms(text)
    return _within(int.from_bytes(found, signed=True)) if len(found) == _LONG_BYTES else None


def pointed(place: str) -> list[str]:
    """Return the names on the way to a place: a JSON Pointer's, or one field."""
    if not place.startswith("/"):
        return [place]
    return [part.replace("~1", "/").replace("~0", "~") for part in place.split("/")[1:]]


@lru_cache(_MOST_RULES)
def _reader(rule: TimestampRule) -> Callable[[bytes], object]:
    """Return a function that finds the place in a value. Raises SettingsError for a schema that does not fit, and for a
    missing package: executors call this, too, and a package may be missing on one of them only.
    """
    names = pointed(rule.place)
    if rule.kind == "json":
        return lambda value: _found(orjson.loads(value), names)
    assert rule.schema is not None, "a rule of an encoding has one"
    try:
        if rule.kind == "avro":
            decode = avro_decoder(rule.schema, names)
            return lambda value: _found(decode(value), names)
        return protobuf_reader(rule.schema, names)
    except ImportError as error:
        raise SettingsError(
            f"timestamps in {rule.kind} need a package that this machine does not have: {error}",
            where="option timestamp",
            fix=install_fix("pipeline"),
        ) from error


def _time_in(value: bytes | None, read: Callable[[bytes], object]) -> int | None:
    try:
        return _epoch_ms(read(value or b""))
    except Exception:  # decoders raise errors of many classes for bytes that anybody may have written
        return None


def check_schema_of(rule: TimestampRule) -> None:
    """Raise SettingsError if the rule's schema, or the package that reads it, cannot be used here."""
    if rule.schema is not None:
        _reader(rule)


def _found(value: object, names: Sequence[str]) -> object:
    for name in names:
        value = value[int(name)] if isinstance(value, list) else value[name]  # type: ignore[index]  # or no usable time
    return value


def _epoch_ms(found: object) -> int | None:
    match found:
        case bool():
            return None
        case int() | float():
            return _within(int(found))
        case str():
            return _epoch_ms(datetime.fromisoformat(found))
        case datetime():
            moment = found if found.tzinfo else found.replace(tzinfo=UTC)
            return _within((moment - _EPOCH) // _MILLISECOND)  # exact: a float would lose the last one
        case _:
            return None


def _within(time_ms: int) -> int | None:
    return time_ms if LEAST_TIME_MS <= time_ms < END_TIME_MS else None
