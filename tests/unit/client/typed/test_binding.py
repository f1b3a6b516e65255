"""Typed values: what the servers print comes as Python values without loss, and goes back as the same key."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from tests.support.spark.values import schemas_and_rows, struct_of
from tests.support.typed.entries import entry_of, module_of, struct

from understudy.typed import CalendarInterval, SchemaError, UnfitValueError, YearMonthInterval, bind
from understudy.typed.columns import read_entry
from understudy.typed.models import models_source
from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark import types as t
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.json_values import compile_json_parser
from understudy_shared.spark.unsafe_row import compile_row_encoder

SchemaAndRow = tuple[t.StructType, tuple[object, ...]]


def printed_and_bytes(schema_and_row: SchemaAndRow) -> tuple[dict[str, Any], bytes]:
    schema, row = schema_and_row
    data = compile_row_encoder(schema)(row)
    return orjson.loads(orjson.dumps(compile_json_printer(schema)(data))), data


def sent_bytes(schema: t.StructType, key: object, binding: Any) -> bytes:
    sent = orjson.loads(orjson.dumps(binding.key_columns(key)))
    return compile_row_encoder(schema)(compile_json_parser(schema)(sent))


@given(schemas_and_rows())
def test_a_printed_row_comes_as_plain_values_and_goes_back_as_the_same_bytes(schema_and_row: SchemaAndRow) -> None:
    printed, data = printed_and_bytes(schema_and_row)
    binding = bind(entry_of(schema_and_row[0]))
    assert sent_bytes(schema_and_row[0], binding.key(printed), binding) == data
    assert list(binding.value(printed)) == list(printed)


@pytest.mark.parametrize("pydantic", [False, True])
@settings(max_examples=25)
@given(schemas_and_rows())
def test_generated_models_take_a_row_and_send_the_same_bytes(pydantic: bool, schema_and_row: SchemaAndRow) -> None:
    printed, data = printed_and_bytes(schema_and_row)
    entry = entry_of(schema_and_row[0])
    with module_of(models_source(read_entry(entry), pydantic=pydantic)) as models:
        binding = bind(entry, key=models.FlightsKey, value=models.FlightsValue if printed else None)
        try:
            key = binding.key(printed)
        except UnfitValueError as error:  # the year 10000, a repeated key of a map, a text of no UTF-8 in pydantic
            assert any(reason in str(error) for reason in ("cannot hold", "twice", "surrogate", "unicode"))  # noqa: PT017
            return
        assert isinstance(key, models.FlightsKey)
        assert sent_bytes(schema_and_row[0], key, binding) == data
        if printed:
            binding.value(printed)


@pytest.mark.parametrize(
    ("spark_type", "printed", "expected"),
    [
        (t.LongType(), 2**63 - 1, 2**63 - 1),
        (t.LongType(), "9223372036854775807", 2**63 - 1),
        (t.DoubleType(), "-Infinity", -math.inf),
        (t.DecimalType(10, 2), "12.30", Decimal("12.30")),
        (t.StringType(), {"base64": "/w=="}, "\udcff"),
        (t.BinaryType(), "/w==", b"\xff"),
        (t.DateType(), "2024-02-29", date(2024, 2, 29)),
        (t.DateType(), "+10000-01-01", "+10000-01-01"),
        (t.TimestampType(), "2024-01-31T12:00:00.000001Z", datetime(2024, 1, 31, 12, 0, 0, 1, tzinfo=UTC)),
        (t.TimestampNtzType(), "2024-01-31T12:00:00.000001", datetime(2024, 1, 31, 12, 0, 0, 1)),  # noqa: DTZ001
        (t.TimeType(), "12:34:56.000001", time(12, 34, 56, 1)),
        (t.TimeType(), "12:34:56.000000001", "12:34:56.000000001"),
        (t.DayTimeIntervalType(), "-P1DT2H3M4.5S", -timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        (t.YearMonthIntervalType(), "P1Y2M", YearMonthInterval(14)),
        (t.CalendarIntervalType(), "P1M-2DT3.5S", CalendarInterval(1, -2, 3_500_000)),
        (t.ArrayType(struct(x=t.DateType())), [{"x": "2024-01-01"}, None], [{"x": date(2024, 1, 1)}, None]),
        (t.MapType(t.StringType(), t.LongType()), {"a": 1}, {"a": 1}),
        (t.MapType(t.DateType(), t.LongType()), [["2024-01-01", 1]], [(date(2024, 1, 1), 1)]),
    ],
)
def test_a_plain_value_has_the_python_type_of_its_spark_type(
    spark_type: t.SparkType, printed: object, expected: object
) -> None:
    binding = bind(entry_of(struct_of(spark_type)))
    found = binding.value({"c0": printed, "a_new_column": 1})
    assert found == {"c0": expected}
    assert type(found["c0"]) is type(expected)


@pytest.mark.parametrize(
    ("spark_type", "value", "sent"),
    [
        (t.LongType(), "7", "7"),
        (t.StringType(), UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (t.TimestampType(), datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2023-12-31T22:00:00.000000Z"),
        (t.ArrayType(t.LongType()), [1], [1]),
        (struct(start=t.LongType(), end=t.LongType()), (1, 2), [1, 2]),
        (struct(start=t.LongType(), end=t.LongType()), {"start": 1, "end": 2}, {"start": 1, "end": 2}),
    ],
)
def test_the_value_of_the_only_column_is_a_key(spark_type: t.SparkType, value: object, sent: object) -> None:
    binding = bind(entry_of(struct_of(spark_type)))
    for key in (value, (value,), {"c0": value}):
        assert binding.key_columns(key) == {"c0": sent}


@pytest.mark.parametrize(
    ("spark_type", "value", "reason"),
    [
        (t.LongType(), True, "it is not an integer"),
        (t.LongType(), 2**63, "it is not within"),
        (t.LongType(), 1.0, "it is not an integer"),
        (t.DecimalType(10, 2), Decimal("0.001"), "more than 2 digits after"),
        (t.TimestampType(), datetime(2024, 1, 1), "no time zone"),  # noqa: DTZ001
        (t.TimestampNtzType(), datetime(2024, 1, 1, tzinfo=UTC), "has a time zone"),
        (t.DateType(), datetime(2024, 1, 1, tzinfo=UTC), "a date is wanted"),
        (t.StringType(), b"x", "it is not a string"),
        (t.StringType(), object(), "it is not a string"),
        (struct(a=t.LongType(), b=t.LongType()), (1,), "it is neither"),
    ],
)
def test_a_key_that_would_be_another_is_refused(spark_type: t.SparkType, value: object, reason: str) -> None:
    with pytest.raises(BadKeyError, match=reason):
        bind(entry_of(struct_of(spark_type))).key_columns(value)


def test_a_key_of_a_map_is_the_grouping_key_or_that_and_the_user_key() -> None:
    user_key = [{"name": "city", "type": "string", "example": "text"}]
    binding = bind(entry_of(struct(n=t.LongType()), struct(name=t.StringType()), "map", user_key=user_key))
    assert binding.key_columns("ada") == {"name": "ada"}
    assert binding.key_columns(("ada", "paris")) == {"name": "ada", "city": "paris"}
    assert binding.user_key({"city": "paris"}) == {"city": "paris"}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"kind": "heap"}, "does not describe a store"),
        ({"key": [{"name": "k"}]}, "does not describe a store"),
        ({"key": None}, "does not describe a store"),
        ({"key": [{"name": "k", "type": "long"}] * 2}, "two columns have one name"),
        (
            {"value": [{"name": "v", "type": "object", "nullable": True}]},
            r"type 'object' is not known \(store flights",
        ),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        bind({**entry_of(struct_of(t.LongType())), **wrong})
