"""Decodes values of Avro and Protobuf as far as a timestamp needs it, by a schema that the user gives.

Imported only where a query asks for it. Decoders raise whatever their packages raise for bytes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import orjson

from understudy_pipeline.inputs.timestamps import Schema
from understudy_shared.base.errors import SettingsError

_MAGIC_AND_ID_BYTES = 5
"""Bytes that the schema registry's serializers write first: a zero, and the schema's id."""

_TIMESTAMP = "google.protobuf.Timestamp"


def avro_decoder(schema: Schema) -> Callable[[bytes], object]:
    """Return a decoder of values in Avro's binary encoding. Raises SettingsError for what is no schema."""
    from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415  # the caller says what to install

    try:
        parsed = parse_schema(orjson.loads(schema.content))
    except Exception as error:  # fastavro has no base class of its errors
        raise _unusable(error, fix="Give an Avro schema in JSON, as in an .avsc file") from error
    begin = _MAGIC_AND_ID_BYTES if schema.is_framed else 0
    return lambda value: schemaless_reader(BytesIO(value[begin:]), parsed, None)


def protobuf_reader(schema: Schema, names: Sequence[str]) -> Callable[[bytes], object]:
    """Return a function that finds a field in an encoded message. Raises SettingsError if there is no such field.

    A field that is not set has no time: also a number that has no presence and is 0.
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
        found = make.FromString(value[_behind_indexes(value) if schema.is_framed else 0 :])
        for each in fields:
            if each.has_presence and not found.HasField(each.name):
                return None
            found = getattr(found, each.name)
        if fields[-1].message_type is not None:
            return found.seconds * 1000 + found.nanos // 1_000_000
        return found or None

    return read


def _fields_on_the_way(descriptor: Any, names: Sequence[str]) -> list[Any]:
    """Return the descriptors of the fields of a path, which ends at a number, a text, or a Timestamp."""
    fields: list[Any] = []
    for name in names:
        found = None if descriptor is None else descriptor.fields_by_name.get(name)
        if found is None or found.is_repeated:
            of = "a field that is no message" if descriptor is None else descriptor.full_name
            raise _unusable(f"{of} has no single field '{name}'", fix="Name the fields from outside in: /a/b")
        fields.append(found)
        descriptor = found.message_type
    if descriptor is not None and descriptor.full_name != _TIMESTAMP:
        raise _unusable(f"'{names[-1]}' is a {descriptor.full_name}", fix="Name one of its fields, too: /a/b")
    return fields


def _unusable(error: object, *, fix: str) -> SettingsError:
    return SettingsError(f"the schema cannot be used: {error}", where="option timestamp", fix=fix)


def _behind_indexes(value: bytes) -> int:
    """Return where a framed message begins: behind the number of indexes, and the indexes, that say which one it is."""
    count, at = _zigzag(value, _MAGIC_AND_ID_BYTES)
    for _ in range(count):
        _, at = _zigzag(value, at)
    return at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    number, shift = 0, 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # the bit that says that more bytes follow
            return (number >> 1) ^ -(number & 1), at
