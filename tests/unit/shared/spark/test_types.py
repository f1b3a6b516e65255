"""Schemas and names: what Spark writes is understood, and what cannot be read is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.values import SCALAR_TYPES, types

from understudy_shared.base.errors import CorruptFileError, UnsupportedError
from understudy_shared.spark import types as t
from understudy_shared.spark.types import unique_names


def schema_json(type_node: object, metadata: object = None) -> str:
    field = {"name": "k", "type": type_node, "nullable": True, "metadata": metadata or {}}
    return json.dumps({"type": "struct", "fields": [field]})


def parsed(type_node: object, metadata: object = None) -> t.SparkType:
    return t.parse_schema(schema_json(type_node, metadata)).fields[0].type


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ("void", t.VoidType(), "void"),
        ("null", t.VoidType(), "void"),
        ("integer", t.IntType(), "int"),
        ("long", t.LongType(), "long"),
        ("char(3)", t.StringType(), "string"),
        ("varchar(12)", t.StringType(), "string"),
        ("string collate UNICODE_CI", t.StringType("UNICODE_CI"), "string collate UNICODE_CI"),
        ("interval", t.CalendarIntervalType(), "interval"),
        ("interval year", t.YearMonthIntervalType("year"), "interval year"),
        ("interval minute", t.DayTimeIntervalType("minute"), "interval minute"),
    ],
)
def test_every_type_name_that_spark_writes_is_read_and_printed(text: str, expected: t.SparkType, name: str) -> None:
    assert parsed(text) == expected
    assert parsed(text).name == name


def test_nested_types_are_read_to_the_bottom() -> None:
    window = {
        "type": "struct",
        "fields": [
            {"name": "start", "type": "timestamp", "nullable": False, "metadata": {}},
            {"name": "end", "type": "timestamp"},
        ],
    }
    array = {"type": "array", "elementType": window, "containsNull": True}
    found = parsed({"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": True})
    start, end = t.Field("start", t.TimestampType(), nullable=False), t.Field("end", t.TimestampType())
    assert found == t.MapType(t.StringType(), t.ArrayType(t.StructType((start, end))))
    assert found.name == "map<string,array<struct<start:timestamp,end:timestamp>>>"


def test_a_user_defined_type_is_its_sql_type() -> None:
    assert parsed({"type": "udt", "class": "org.example.Point", "pyClass": None, "sqlType": "double"}) == t.DoubleType()


@pytest.mark.parametrize("type_name", ["variant2", "geometry(", "object"])
def test_an_unreadable_type_is_refused_by_name_and_column(type_name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"type .* not supported \(column k\)") as caught:
        parsed(type_name)
    assert type_name in str(caught.value)


def test_a_collation_is_found_in_the_metadata_where_spark_writes_it() -> None:
    array = {"type": "array", "elementType": "string", "containsNull": False}
    schema = t.parse_schema(schema_json(array, {"__COLLATIONS": {"k.element": "spark.UTF8_LCASE"}}))
    assert schema.fields[0].type == t.ArrayType(t.StringType("UTF8_LCASE"))
    assert t.collated_columns(schema) == ("k",)


@pytest.mark.parametrize(
    "text", ["", "[]", "7", '"string"', '{"type":"struct"}', '{"type":"struct","fields":[{}]}', "{"]
)
def test_what_is_not_a_schema_is_refused(text: str) -> None:
    with pytest.raises(CorruptFileError, match="schema"):
        t.parse_schema(text)


@given(types(3))
def test_every_name_reads_back_as_its_type(spark_type: t.SparkType) -> None:
    assert t.parse_type_name(spark_type.name) == spark_type


@pytest.mark.parametrize("spark_type", SCALAR_TYPES, ids=lambda each: each.name)
def test_the_name_of_a_type_is_how_spark_writes_it_but_for_one(spark_type: t.SparkType) -> None:
    assert parsed("integer" if spark_type == t.IntType() else spark_type.name) == spark_type


@pytest.mark.parametrize(
    "spark_type",
    [
        t.StringType("UNICODE_CI"),
        t.TimeType(9),
        t.YearMonthIntervalType("year"),
        t.DayTimeIntervalType("hour to second"),
        t.StructType(),
        t.StructType((t.Field("a:b", t.LongType()), t.Field("c,d", t.ArrayType(t.LongType())))),
        t.StructType((t.Field("", t.LongType()), t.Field("a<b>", t.MapType(t.StringType(), t.StructType())))),
    ],
)
def test_unusual_names_read_back(spark_type: t.SparkType) -> None:
    assert t.parse_type_name(spark_type.name) == spark_type


@pytest.mark.parametrize(
    "text",
    [
        *("", "object", "array<long", "array<>", "map<long>", "struct<a>", "long>", "struct<a:long"),
        *("array<" * 5000, "struct<" + ":" * 50_000, "struct<a:" * 2000 + "long" + ">" * 2000),
        "struct<" + "a:" * 20 + "long>",
    ],
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="is not known"):
        t.parse_type_name(text)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), ()),
        (("count", "max"), ("count", "max")),
        (("sum", "sum", "sum"), ("sum", "sum_2", "sum_3")),
        (("sum", "sum_2", "sum"), ("sum", "sum_2", "sum_3")),
        (("sum", "sum", "sum_2"), ("sum", "sum_3", "sum_2")),
        (("", ""), ("", "_2")),
    ],
)
def test_repeated_names_get_suffixes_that_nobody_has(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert unique_names(names) == expected


@given(st.lists(st.sampled_from(["a", "b", "a_2", "a_3", "a_2_2"])))
def test_names_are_unique_and_first_comers_keep_theirs(names: list[str]) -> None:
    unique = unique_names(names)
    assert len(set(unique)) == len(names)
    for index, name in enumerate(names):
        assert (unique[index] == name) == (name not in names[:index])
