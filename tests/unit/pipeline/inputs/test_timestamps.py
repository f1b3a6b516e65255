"""Timestamps in values and headers: every encoding gives the time that was written, and rubbish gives none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from io import BytesIO

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from understudy_aligned.inputs.timestamps import (
    Headers,
    TimestampRule,
    ValueSchema,
    check_schema_of,
    header_time_ms,
    value_times_ms,
)
from understudy_shared.base.errors import SettingsError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FRAME = b"\0\0\0\0\x07"

AVRO = {
    "type": "record",
    "name": "Weather",
    "fields": [
        {"name": "station", "type": "string"},
        {
            "name": "read",
            "type": {
                "type": "record",
                "name": "Reading",
                "fields": [
                    {"name": "long", "type": ["null", "long"]},
                    {"name": "moment", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
                    {"name": "all", "type": {"type": "array", "items": "long"}},
                ],
            },
        },
    ],
}


def descriptors() -> bytes:
    """Return the descriptors of `demo.Weather`, as `protoc --include_imports --descriptor_set_out` writes them."""
    file = descriptor_pb2.FileDescriptorProto(name="demo.proto", package="demo", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    reading = file.message_type.add(name="Reading")
    kinds = descriptor_pb2.FieldDescriptorProto
    reading.field.add(name="long", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    moment = reading.field.add(name="moment", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL)
    moment.type_name = ".google.protobuf.Timestamp"
    reading.field.add(name="raw", number=4, type=kinds.TYPE_BYTES, label=kinds.LABEL_OPTIONAL)
    reading.field.add(name="is", number=5, type=kinds.TYPE_BOOL, label=kinds.LABEL_OPTIONAL)
    reading.field.add(name="all", number=3, type=kinds.TYPE_INT64, label=kinds.LABEL_REPEATED)
    weather = file.message_type.add(name="Weather")
    read = weather.field.add(name="read", number=1, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL)
    read.type_name = ".demo.Reading"
    imported = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    encoded: bytes = descriptor_pb2.FileDescriptorSet(file=[imported, file]).SerializeToString()
    return encoded


DESCRIPTORS = descriptors()


def avro(place: str, *, is_framed: bool = False) -> TimestampRule:
    return TimestampRule("avro", place, ValueSchema(json.dumps(AVRO).encode(), is_framed=is_framed))


def protobuf(place: str, *, is_framed: bool = False, message: str = "demo.Weather") -> TimestampRule:
    return TimestampRule("protobuf", place, ValueSchema(DESCRIPTORS, message, is_framed))


def avro_value(at_ms: int | None) -> bytes:
    moment = EPOCH + timedelta(milliseconds=at_ms or 0)
    read = {"long": at_ms, "moment": moment, "local": moment.replace(tzinfo=None), "all": [0, at_ms or 0]}
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"station": "JFK", "read": read})
    return out.getvalue()


def protobuf_value(at_ms: int | None) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file:
        pool.Add(file)
    weather = message_factory.GetMessageClass(pool.FindMessageTypeByName("demo.Weather"))()
    if at_ms is not None:
        weather.read.long = at_ms
        weather.read.moment.seconds, weather.read.moment.nanos = at_ms // 1000, at_ms % 1000 * 1_000_000
    encoded: bytes = weather.SerializeToString()
    return encoded


def time_of(rule: TimestampRule, value: bytes | None) -> int | None:
    return value_times_ms(rule, [value])[0]


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999).filter(bool))
@example(1_001)
def test_every_encoding_gives_the_time_that_was_written(at_ms: int) -> None:
    iso = (EPOCH + timedelta(milliseconds=at_ms)).isoformat()
    document = json.dumps({"at": at_ms, "a/b": {"iso": [iso]}, "/x": 1}).encode()
    written = avro_value(at_ms)
    assert [time_of(TimestampRule("json", place), document) for place in ("at", "/at", "/a~1b/iso/0")] == [at_ms] * 3
    places = ("/read/long", "/read/moment", "/read/local", "/read/all/1")
    assert [time_of(avro(place), written) for place in places] == [at_ms] * 4
    assert time_of(avro("/read/moment", is_framed=True), FRAME + written) == at_ms
    assert [time_of(protobuf(place), protobuf_value(at_ms)) for place in ("/read/long", "/read/moment")] == [at_ms] * 2


@given(st.binary(max_size=60))
def test_rubbish_is_a_poison_record_and_no_error(value: bytes) -> None:
    rules = [avro("/read/long"), avro("/read/all/1", is_framed=True), protobuf("/read/moment", is_framed=True)]
    for rule in [*rules, protobuf("/read/long"), TimestampRule("json", "/a/0")]:
        found = time_of(rule, value)
        assert found is None or isinstance(found, int)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("at", b"5"), ("other", b"9")], 5),
        ([("at", b"5"), ("at", b"7")], 7),
        ([("at", b"1970-01-01T00:00:01Z")], 1_000),
        ([("at", (1_700_000_000_000).to_bytes(8))], 1_700_000_000_000),
        ([("at", b"soon")], None),
        ([("at", None)], None),
        ([("other", b"5")], None),
        (None, None),
    ],
)
def test_the_last_header_of_the_name_has_the_time_as_text_or_as_a_long(headers: Headers, expected: int | None) -> None:
    assert header_time_ms(TimestampRule("header", "at"), headers) == expected


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (TimestampRule("avro", "/at", ValueSchema(b"{")), "the schema cannot be used"),
        (TimestampRule("avro", "/at", ValueSchema(b'{"type": "recrod"}')), "the schema cannot be used"),
        (TimestampRule("protobuf", "/at", ValueSchema(b"\xff", "a.B")), "the schema cannot be used"),
        (avro("/at"), "Weather has no field 'at'"),
        (avro("/read/at"), "Reading has no field 'at'"),
        (protobuf("/at", message="demo.Wetter"), "demo.Wetter"),
        (protobuf("/at"), "demo.Weather has no single field 'at'"),
        (protobuf("/read/all"), "demo.Reading has no single field 'all'"),
        (protobuf("/read/long/at"), "a field that is not a message has no single field 'at'"),
        (protobuf("/read"), "'read' is a demo.Reading"),
        (protobuf("/read/raw"), "'raw' is neither a number, a text nor a Timestamp"),
        (protobuf("/read/is"), "'is' is neither a number, a text nor a Timestamp"),
    ],
)
def test_a_schema_that_cannot_give_the_time_is_refused_before_anything_is_read(rule: TimestampRule, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        check_schema_of(rule)


Field = Mapping[str, object]


def avro_fields(*fields: Field) -> TimestampRule:
    """The field `at` of a record that has these fields."""
    content = json.dumps({"type": "record", "name": "Node", "fields": fields}).encode()
    return TimestampRule("avro", "/at", ValueSchema(content))


AT = {"name": "at", "type": "long"}
NEXT = {"name": "next", "type": ["null", "Node"]}
NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "none", "type": "null"}]}


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ([NEXT], "'Node' contains itself"),
        ([{"name": "all", "type": {"type": "map", "values": {"type": "array", "items": "Node"}}}], "itself"),
        ([{"name": "all", "type": {"type": "array", "items": "null"}}], "items that take no bytes"),
        (
            [{"name": "one", "type": NOTHING}, {"name": "all", "type": {"type": "array", "items": "Nothing"}}],
            "no bytes",
        ),
    ],
)
def test_a_schema_by_which_a_short_value_could_end_the_process_is_refused(before: list[Field], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        check_schema_of(avro_fields(*before, AT))


def test_a_value_is_decoded_up_to_the_timestamp_only_so_what_is_behind_it_may_be_of_any_kind() -> None:
    deep = b"\x0a" + b"\x02\x02" * 1_000_000
    assert time_of(avro_fields(AT, NEXT), deep) == 5
