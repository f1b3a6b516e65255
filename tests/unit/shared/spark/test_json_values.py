"""JSON of Spark values: what is printed reads back as the same key, and what does not fit is refused helpfully."""

from __future__ import annotations

from base64 import b64decode
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.values import schemas_and_rows, struct_of

from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark import types as t
from understudy_shared.spark.json_printer import OPAQUE, compile_json_printer, variant_json
from understudy_shared.spark.json_values import (
    compile_json_parser,
    compile_segment_parser,
)
from understudy_shared.spark.unsafe_row import compile_row_encoder

POINT = t.StructType((t.Field("x", t.IntType()), t.Field("x", t.IntType())))
NAN = float("nan")


@given(schemas_and_rows())
def test_everything_that_is_printed_reads_back_as_the_same_bytes(
    schema_and_row: tuple[t.StructType, tuple[object, ...]],
) -> None:
    schema, row = schema_and_row
    encode = compile_row_encoder(schema)
    data = encode(row)
    printed = orjson.loads(orjson.dumps(compile_json_printer(schema)(data)))
    assert encode(compile_json_parser(schema)(printed)) == data
    assert encode(compile_json_parser(schema)(list(printed.values()))) == data


@pytest.mark.parametrize(
    ("spark_type", "value", "expected"),
    [
        (t.FloatType(), 0.10000000149011612, 0.1),
        (t.FloatType(), 3.4028234663852886e38, 3.4028235e38),
        (t.DoubleType(), NAN, "NaN"),
        (t.DoubleType(), -float("inf"), "-Infinity"),
        (t.DecimalType(10, 2), Decimal("-0.05"), "-0.05"),
        (t.DecimalType(10, 2), Decimal(12), "12.00"),
        (t.DecimalType(38, 38), Decimal("0.1"), "0.1" + "0" * 37),
        (t.StringType(), "\udcff", {"base64": "/w=="}),
        (t.BinaryType(), b"\xff", "/w=="),
        (t.DateType(), 0, "1970-01-01"),
        (t.TimestampType(), 1, "1970-01-01T00:00:00.000001Z"),
        (t.TimestampNtzType(), 1, "1970-01-01T00:00:00.000001"),
        (t.TimeType(), 1000, "00:00:00.000001"),
        (t.YearMonthIntervalType(), 14, "P1Y2M"),
        (t.DayTimeIntervalType(), 1, "PT0.000001S"),
        (t.CalendarIntervalType(), (1, 2, 3), "P1M2DT0.000003S"),
        (POINT, (1, None), {"x": 1, "x_2": None}),
        (t.ArrayType(t.DoubleType()), [NAN, 0.5, None], ["NaN", 0.5, None]),
        (t.MapType(t.StringType(), t.IntType()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (t.MapType(t.StringType(), t.IntType()), [("a", 1), ("a", 2)], [["a", 1], ["a", 2]]),
        (t.MapType(t.IntType(), t.IntType()), [(1, 2)], [[1, 2]]),
    ],
)
def test_values_print_as_the_api_promises(spark_type: t.SparkType, value: object, expected: object) -> None:
    schema = struct_of(spark_type)
    assert compile_json_printer(schema)(compile_row_encoder(schema)((value,))) == {"c0": expected}


@pytest.mark.parametrize(
    ("spark_type", "given_value", "expected"),
    [
        (t.DoubleType(), 5, 5.0),
        (t.DecimalType(10, 2), 12, Decimal(12)),
        (t.DecimalType(10, 2), 12.34, Decimal("12.34")),
        (t.DecimalType(10, 2), "1.2e1", Decimal(12)),
        (t.DecimalType(38, 2), "123456789012345678901234567890.10", Decimal("123456789012345678901234567890.1")),
        (t.BinaryType(), "_-8", b"\xff\xef"),
        (t.YearMonthIntervalType(), 14, 14),
        (POINT, [1, 2], (1, 2)),
        (POINT, {"x_2": 2, "x": 1}, (1, 2)),
        (t.ArrayType(POINT), [None, [1, None]], [None, (1, None)]),
    ],
)
def test_other_forms_of_a_value_are_read(spark_type: t.SparkType, given_value: object, expected: object) -> None:
    assert compile_json_parser(struct_of(spark_type))([given_value]) == (expected,)


@pytest.mark.parametrize(
    ("spark_type", "value"),
    [
        (t.BooleanType(), 1),
        (t.ByteType(), 128),
        (t.IntType(), True),
        (t.IntType(), 5.0),
        (t.LongType(), 2**63),
        (t.FloatType(), 1e39),
        (t.FloatType(), 2**24 + 1),
        (t.DoubleType(), 2**53 + 1),
        (t.DoubleType(), 10**400),
        (t.DecimalType(10, 2), "0.001"),
        (t.DecimalType(10, 2), 123456789),
        (t.DecimalType(10, 2), "NaN"),
        (t.DecimalType(10, 2), 10**400),
        (t.DecimalType(38, 18), float("0.300000000000000001")),
        (t.StringType(), 5),
        (t.StringType(), "\ud800"),
        (t.BinaryType(), "a*b"),
        (t.DateType(), "2013-02-30"),
        (t.TimestampType(), "2013-03-01T00:00:00"),
        (t.TimestampNtzType(), "2013-03-01T00:00:00Z"),
        (t.TimeType(), "25:00:00"),
        (t.YearMonthIntervalType(), 2**31),
        (t.DayTimeIntervalType(), "P1M"),
        (t.CalendarIntervalType(), 5),
        (POINT, [1]),
        (POINT, {"x": 1}),
        (t.MapType(t.IntType(), t.IntType()), {"1": 2}),
        (t.MapType(t.IntType(), t.IntType()), [[1]]),
        (t.MapType(t.StringType(), t.IntType()), [[None, 1]]),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_column_type_value_and_example(
    spark_type: t.SparkType, value: object
) -> None:
    with pytest.raises(BadKeyError, match="does not fit") as caught:
        compile_json_parser(struct_of(spark_type), ["tail"])([value])
    assert caught.value.where.startswith("column tail")
    assert caught.value.fix.startswith("Send it like ")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("spark_type", "text", "expected"),
    [
        (t.BooleanType(), "true", True),
        (t.DoubleType(), "1.5e3", 1500.0),
        (t.FloatType(), "0.1", 0.10000000149011612),
        (t.DecimalType(10, 2), "12.3", Decimal("12.30")),
        (t.BinaryType(), "_-8=", b"\xff\xef"),
        (t.DateType(), "1970-01-02", 1),
        (t.TimestampType(), "1970-01-01T01:00:00+01:00", 0),
        (t.DayTimeIntervalType(), "PT1S", 1_000_000),
    ],
)
def test_scalars_are_read_from_a_path_segment(spark_type: t.SparkType, text: str, expected: object) -> None:
    assert compile_segment_parser(spark_type)(text) == expected


@pytest.mark.parametrize(
    ("spark_type", "text"),
    [
        (t.BooleanType(), "yes"),
        (t.LongType(), "1_000"),
        (t.LongType(), "٤"),
        (t.DoubleType(), "1e999"),
        (t.StringType(), ""),
        (POINT, "1"),
        (t.ArrayType(t.IntType()), "[1]"),
    ],
)
def test_a_segment_that_does_not_fit_is_refused(spark_type: t.SparkType, text: str) -> None:
    with pytest.raises(BadKeyError, match="column tail"):
        compile_segment_parser(spark_type, "tail")(text)


NAMES = bytes([0x11, 1, 0, 1]) + b"x"
"""A dictionary of one name."""


def stored(value: bytes, names: bytes = NAMES) -> bytes:
    return len(value).to_bytes(4, "little") + value + names


def test_a_value_is_printed_with_its_names() -> None:
    number = bytes([3 << 2, 7])
    one_field = bytes([0b10, 1, 0, 0, 2]) + number
    assert variant_json(stored(one_field)) == '{"x":7}'
    assert variant_json(stored(bytes([0b11, 2, 0, 2, 4]) + number + number)) == "[7,7]"
    assert variant_json(stored(bytes([5 << 2 | 1]) + b'a"\n\x1b\x7f')) == '"a\\"\\n\\u001B\x7f"'


def test_what_cannot_be_decoded_is_its_bytes() -> None:
    unknown_type, later_version = stored(bytes([63 << 2])), stored(bytes([0]), b"\x02\x00\x00")
    not_utf_8, no_name = stored(b"\x05\xff"), stored(bytes([0b10, 1, 1, 0, 1, 0]))
    for data in (b"", b"\0", unknown_type, later_version, not_utf_8, no_name):
        text = variant_json(data)
        assert b64decode(text.removeprefix(OPAQUE)) == data
        assert text.startswith(OPAQUE)


def test_parts_that_lie_in_each_other_do_not_grow() -> None:
    """Two hundred parts, each of them the whole of the next level."""
    level = b"\0"
    for _ in range(20):
        level = bytes([0b111, 200]) + bytes(2 * 200) + len(level).to_bytes(2, "little") + level
    assert variant_json(stored(level)).startswith(OPAQUE)


def test_a_value_nested_deeper_than_python_reaches_is_its_bytes() -> None:
    value = b"\0"
    for _ in range(5000):
        width = 2
        value = bytes([0b11 | (width - 1) << 2, 1]) + b"\0\0" + min(len(value), 65535).to_bytes(2, "little") + value
    assert variant_json(stored(value)).startswith(OPAQUE)


@given(st.binary(max_size=200), st.binary(max_size=30))
def test_no_bytes_raise_anything(value: bytes, names: bytes) -> None:
    assert variant_json(stored(value, names))
    assert variant_json(value)
