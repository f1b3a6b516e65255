"""JSON of Spark values: what is printed reads back as the same key, and what does not fit is refused helpfully."""

from __future__ import annotations

from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from tests.support.spark.values import schemas_and_rows, struct_of

from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.json_values import (
    compile_json_parser,
    compile_segment_parser,
)
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntType,
    LongType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VoidType,
    YearMonthIntervalType,
)
from understudy_shared.spark.unsafe_row import compile_row_encoder

POINT = StructType((Field("x", IntType()), Field("x", IntType())))
NAN = float("nan")


@given(schemas_and_rows())
def test_everything_that_is_printed_reads_back_as_the_same_bytes(
    schema_and_row: tuple[StructType, tuple[object, ...]],
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
        (BooleanType(), True, True),
        (LongType(), 2**63 - 1, 2**63 - 1),
        (FloatType(), 0.10000000149011612, 0.1),
        (FloatType(), 3.4028234663852886e38, 3.4028235e38),
        (DoubleType(), NAN, "NaN"),
        (DoubleType(), -float("inf"), "-Infinity"),
        (DecimalType(10, 2), Decimal("-0.05"), "-0.05"),
        (DecimalType(10, 2), Decimal(12), "12.00"),
        (DecimalType(10, 0), Decimal(-7), "-7"),
        (DecimalType(38, 38), Decimal("0.1"), "0.1" + "0" * 37),
        (StringType(), "é", "é"),
        (StringType(), "\udcff", {"base64": "/w=="}),
        (BinaryType(), b"\xff", "/w=="),
        (DateType(), 0, "1970-01-01"),
        (TimestampType(), 1, "1970-01-01T00:00:00.000001Z"),
        (TimestampNtzType(), 1, "1970-01-01T00:00:00.000001"),
        (TimeType(), 1000, "00:00:00.000001"),
        (YearMonthIntervalType(), 14, "P1Y2M"),
        (DayTimeIntervalType(), 1, "PT0.000001S"),
        (CalendarIntervalType(), (1, 2, 3), "P1M2DT0.000003S"),
        (VoidType(), None, None),
        (POINT, (1, None), {"x": 1, "x_2": None}),
        (ArrayType(DoubleType()), [NAN, 0.5, None], ["NaN", 0.5, None]),
        (MapType(StringType(), IntType()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (MapType(StringType(), IntType()), [("a", 1), ("a", 2)], [["a", 1], ["a", 2]]),
        (MapType(IntType(), IntType()), [(1, 2)], [[1, 2]]),
    ],
)
def test_values_print_as_the_api_promises(spark_type: SparkType, value: object, expected: object) -> None:
    schema = struct_of(spark_type)
    assert compile_json_printer(schema)(compile_row_encoder(schema)((value,))) == {"c0": expected}


@pytest.mark.parametrize(
    ("spark_type", "given_value", "expected"),
    [
        (DoubleType(), 5, 5.0),
        (DecimalType(10, 2), 12, Decimal(12)),
        (DecimalType(10, 2), 12.34, Decimal("12.34")),
        (DecimalType(10, 2), "1.2e1", Decimal(12)),
        (DecimalType(38, 2), "123456789012345678901234567890.10", Decimal("123456789012345678901234567890.1")),
        (BinaryType(), "_-8", b"\xff\xef"),
        (YearMonthIntervalType(), 14, 14),
        (POINT, [1, 2], (1, 2)),
        (POINT, {"x_2": 2, "x": 1}, (1, 2)),
        (MapType(StringType(), IntType()), [["a", 1]], [("a", 1)]),
        (ArrayType(POINT), [None, [1, None]], [None, (1, None)]),
    ],
)
def test_other_forms_of_a_value_are_read(spark_type: SparkType, given_value: object, expected: object) -> None:
    assert compile_json_parser(struct_of(spark_type))([given_value]) == (expected,)


@pytest.mark.parametrize(
    ("spark_type", "value"),
    [
        (BooleanType(), 1),
        (ByteType(), 128),
        (IntType(), True),
        (IntType(), 5.0),
        (IntType(), "5.0"),
        (LongType(), 2**63),
        (FloatType(), 1e39),
        (FloatType(), 2**24 + 1),
        (DoubleType(), 2**53 + 1),
        (DoubleType(), 10**400),
        (DoubleType(), "nan"),
        (DoubleType(), True),
        (DecimalType(10, 2), "0.001"),
        (DecimalType(10, 2), 123456789),
        (DecimalType(10, 2), "1e999"),
        (DecimalType(10, 2), "1_0"),
        (DecimalType(10, 2), "NaN"),
        (DecimalType(38, 18), 0.12345678901234567),
        (DecimalType(38, 0), 1e20),
        (DecimalType(10, 2), 10**400),
        (StringType(), 5),
        (StringType(), "\ud800"),
        (StringType(), {"base64": "!"}),
        (BinaryType(), "a*b"),
        (DateType(), "2013-02-30"),
        (DateType(), 5),
        (TimestampType(), "2013-03-01T00:00:00"),
        (TimestampNtzType(), "2013-03-01T00:00:00Z"),
        (TimeType(), "25:00:00"),
        (YearMonthIntervalType(), 2**31),
        (DayTimeIntervalType(), "P1M"),
        (CalendarIntervalType(), 5),
        (VoidType(), 0),
        (POINT, [1]),
        (POINT, {"x": 1}),
        (POINT, 1),
        (ArrayType(IntType()), ["a"]),
        (ArrayType(IntType()), 5),
        (MapType(IntType(), IntType()), {"1": 2}),
        (MapType(IntType(), IntType()), [[1]]),
        (MapType(StringType(), IntType()), [[None, 1]]),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_column_type_value_and_example(
    spark_type: SparkType, value: object
) -> None:
    with pytest.raises(BadKeyError, match="does not fit") as caught:
        compile_json_parser(struct_of(spark_type), ["tail"])([value])
    assert caught.value.where.startswith("column tail")
    assert caught.value.fix.startswith("Send it like ")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("spark_type", "text", "expected"),
    [
        (BooleanType(), "true", True),
        (LongType(), "-42", -42),
        (DoubleType(), "1.5e3", 1500.0),
        (DoubleType(), "-Infinity", -float("inf")),
        (FloatType(), "0.1", 0.10000000149011612),
        (DecimalType(10, 2), "12.3", Decimal("12.30")),
        (StringType(), "a/b %", "a/b %"),
        (BinaryType(), "_-8=", b"\xff\xef"),
        (DateType(), "1970-01-02", 1),
        (TimestampType(), "1970-01-01T01:00:00+01:00", 0),
        (DayTimeIntervalType(), "PT1S", 1_000_000),
    ],
)
def test_scalars_are_read_from_a_path_segment(spark_type: SparkType, text: str, expected: object) -> None:
    assert compile_segment_parser(spark_type)(text) == expected


@pytest.mark.parametrize(
    ("spark_type", "text"),
    [
        (BooleanType(), "yes"),
        (LongType(), "1_000"),
        (LongType(), " 1"),
        (LongType(), "٤"),
        (DoubleType(), "inf"),
        (DoubleType(), "1e999"),
        (StringType(), ""),
        (VoidType(), "null"),
        (POINT, "1"),
        (ArrayType(IntType()), "[1]"),
    ],
)
def test_a_segment_that_does_not_fit_is_refused(spark_type: SparkType, text: str) -> None:
    with pytest.raises(BadKeyError, match="column tail"):
        compile_segment_parser(spark_type, "tail")(text)
