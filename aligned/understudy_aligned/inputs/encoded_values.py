"""Decodes values of Avro and Protobuf as far as a timestamp needs it, by a schema that the user gives.

Imported only where a query asks for it. Decoders raise whatever their packages raise for bytes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from io import BytesIO
from typing import Any

import orjson

from understudy_aligned.inputs.timestamps import ValueSchema
from understudy_shared.base.errors import SettingsError

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
    """Raise SettingsError for a field that a record on the way does not have. A union or a list may have anything."""
    for name in names:
        if not isinstance(schema, dict) or "fields" not in schema:
            return
        types = {each["name"]: each["type"] for each in schema["fields"]}
        if name not in types:
            raise _unusable(f"{schema['name']} has no field '{name}'", fix="Name the fields from outside in: /a/b")
        schema = types[name]


def _up_to_field(schema: Any, name: str) -> Any:
    """Leave out the fields of a record behind this one: they come after it in a value, too."""
    if not isinstance(schema, dict) or "fields" not in schema:
        return schema
    names = [each["name"] for each in schema["fields"]]
    return {**schema, "fields": schema["fields"][: names.index(name) + 1]}


def _check_bounded(schema: Any, within: Set[str], named: dict[str, Any]) -> None:
    """Raise SettingsError where a short value could be as deep or as long as its writer likes.

    The decoder is in C and looks for neither: a deep value overflows the stack, which ends the process. `within` are
    the records around a parsed schema, and `named` gets the types that it defines.
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
    """Whether a value of a parsed schema without recursion takes no bytes. One of a union takes at least one."""
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

    A field that is not set has no time: also one without presence that is 0.
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
    """Return what follows the registry's header. Raises ValueError for a value without one."""
    if value[:1] != b"\0":
        raise ValueError("the value does not begin with a header of a schema registry")
    return value[_MAGIC_AND_ID_BYTES:]


def _behind_indexes(message: bytes) -> bytes:
    """Return what follows the number of indexes, and the indexes, that say which message it is."""
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
