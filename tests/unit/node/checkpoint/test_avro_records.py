"""Avro records are read as Spark's reader reads them, old ones with the newest columns; damage is never half-read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import avro

from understudy_node.checkpoint.avro import NoSuchKeyError, compile_avro_decoder, compile_avro_encoder
from understudy_shared.base.errors import CorruptFileError, UnsupportedError
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntType,
    LongType,
    MapType,
    ShortType,
    SparkType,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    VoidType,
)
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
SCALARS: dict[SparkType, st.SearchStrategy[Any]] = {
    BooleanType(): st.booleans(),
    IntType(): INTS,
    LongType(): LONGS,
    FloatType(): st.floats(width=32, allow_nan=False),
    DoubleType(): st.floats(allow_nan=False),
    StringType(): TEXTS,
    BinaryType(): st.binary(max_size=9),
    DateType(): INTS,
    TimestampType(): LONGS,
    DecimalType(5, 2): st.integers(-99_999, 99_999).map(lambda unscaled: Decimal(unscaled).scaleb(-2)),
    DecimalType(30, 4): st.integers(1 - 10**30, 10**30 - 1).map(lambda unscaled: Decimal(f"{unscaled}E-4")),
}


PAIR = StructType((Field("a", LongType()), Field("b", StringType(), nullable=False)))
KINDS = st.sampled_from(
    [
        *SCALARS,
        PAIR,
        StructType((Field("pair", PAIR), Field("list", ArrayType(PAIR)))),
        ArrayType(LongType()),
        ArrayType(PAIR),
        ArrayType(ArrayType(StringType())),
        MapType(StringType(), DoubleType()),
        MapType(StringType(), PAIR),
        MapType(StringType(), ArrayType(DecimalType(5, 2))),
    ]
)


COLUMNS = st.lists(st.tuples(KINDS, st.booleans()), min_size=1, max_size=4).map(
    lambda each: StructType(tuple(Field(f"c{at}", *one) for at, one in enumerate(each)))
)


@cache
def values(kind: SparkType, *, nullable: bool) -> st.SearchStrategy[Any]:
    match kind:
        case StructType(fields):
            found: st.SearchStrategy[Any] = st.tuples(*(values(each.type, nullable=each.nullable) for each in fields))
        case ArrayType(element):
            found = st.lists(values(element, nullable=_is_union(element)), max_size=3)
        case MapType(_, mapped):
            found = st.lists(st.tuples(TEXTS, values(mapped, nullable=_is_union(mapped))), max_size=3)
        case _:
            found = SCALARS[kind]
    return st.none() | found if nullable else found


def _is_union(element: SparkType) -> bool:
    return isinstance(element, StructType | ArrayType | MapType)


ROWS = COLUMNS.flatmap(lambda columns: st.tuples(st.just(columns), values(columns, nullable=False)))


@given(ROWS)
def test_a_record_of_any_columns_is_read_whole_and_becomes_a_row(one: tuple[StructType, tuple[object, ...]]) -> None:
    columns, row = one
    data = avro.record(columns, row)
    assert compile_avro_decoder(columns, columns)(b"ab" + data, 2) == row
    assert compile_row_decoder(columns)(compile_row_encoder(columns)(row)) == row


@given(ROWS, st.data())
def test_a_record_that_is_cut_or_longer_is_damage(
    one: tuple[StructType, tuple[object, ...]], drawn: st.DataObject
) -> None:
    columns, row = one
    data, decode = avro.record(columns, row), compile_avro_decoder(columns, columns)
    if data:
        with pytest.raises(CorruptFileError):
            decode(data[: drawn.draw(st.integers(0, len(data) - 1))], 0)
    with pytest.raises(CorruptFileError, match="bytes after it"):
        decode(data + b"\x00", 0)


@given(COLUMNS, st.binary(max_size=60))
def test_any_bytes_are_a_record_of_the_columns_or_damage(columns: StructType, data: bytes) -> None:
    with suppress(CorruptFileError):
        row = compile_avro_decoder(columns, columns)(data, 0)
        compile_row_encoder(columns)(row)


@given(ROWS, st.data())
def test_an_old_record_has_the_newest_columns_by_their_names(
    one: tuple[StructType, tuple[object, ...]], drawn: st.DataObject
) -> None:
    """Columns that are gone are passed over, new ones are null, others stand where the newest schema has them."""
    columns, row = one
    kept = drawn.draw(st.permutations(columns.fields).map(lambda each: each[: len(each) // 2 + 1]))
    new = drawn.draw(COLUMNS)
    added = [replace(each, name=f"new{each.name}", nullable=True) for each in new.fields]
    shown = StructType(tuple(drawn.draw(st.permutations([*kept, *added]))))
    by_name = dict(zip((each.name for each in columns.fields), row, strict=True))
    decoded = compile_avro_decoder(columns, shown)(avro.record(columns, row), 0)
    assert decoded == tuple(by_name.get(each.name) if each in kept else None for each in shown.fields)


WIDER = [
    (IntType(), LongType(), -7, -7),
    (IntType(), DoubleType(), 7, 7.0),
    (IntType(), FloatType(), 7, 7.0),
    (LongType(), DoubleType(), 2**62 + 1, float(2**62)),
    (FloatType(), DoubleType(), 0.5, 0.5),
]


@pytest.mark.parametrize(("old", "new", "stored", "shown"), WIDER, ids=lambda each: getattr(each, "name", None))
def test_a_number_that_became_wider_is_read_as_the_wider_one(
    old: SparkType, new: SparkType, stored: object, shown: object
) -> None:
    def inside(kind: SparkType) -> StructType:
        return StructType((Field("a", ArrayType(StructType((Field("n", kind),)))), Field("m", kind)))

    data = avro.record(inside(old), ([(stored,), None], stored))
    decoded = compile_avro_decoder(inside(old), inside(new))(data, 0)
    assert decoded == ([(shown,), None], shown)
    assert [type(each) for each in (decoded[1],)] == [type(shown)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Field("c", LongType()), Field("c", IntType())),
        (Field("c", LongType()), Field("c", FloatType())),
        (Field("c", IntType()), Field("c", DateType())),
        (Field("c", StringType()), Field("c", BinaryType())),
        (Field("c", DecimalType(10, 2)), Field("c", DecimalType(10, 4))),
        (Field("c", ArrayType(LongType())), Field("c", ArrayType(IntType()))),
        (Field("c", LongType()), Field("c", StructType((Field("n", LongType()),)))),
        (Field("c", StructType((Field("n", LongType()),))), Field("c", StructType((Field("n", StringType()),)))),
    ],
    ids=lambda field: f"{field.name} {field.type.name} {field.nullable}",
)
def test_a_change_that_is_not_read_surely_is_refused_and_names_the_column(old: Field, new: Field) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        compile_avro_decoder(StructType((old,)), StructType((new,)))
    assert refusal.value.where.startswith("column c")
    assert refusal.value.fix


@pytest.mark.parametrize(
    "kind",
    [
        ByteType(),
        ShortType(),
        TimeType(),
        VoidType(),
        MapType(IntType(), IntType()),
        StructType(),
        ArrayType(VoidType()),
    ],
    ids=lambda kind: kind.name,
)
def test_a_type_that_spark_has_not_in_avro_state_is_refused(kind: SparkType) -> None:
    columns = StructType((Field("fine", LongType()), Field("odd", kind)))
    with pytest.raises(UnsupportedError, match="odd"):
        compile_avro_decoder(columns, columns)


def test_two_columns_of_one_name_are_refused() -> None:
    twice = StructType((Field("n", LongType()), Field("n", LongType())))
    with pytest.raises(UnsupportedError, match="one name"):
        compile_avro_decoder(twice, twice)


def test_a_count_that_the_bytes_cannot_hold_takes_no_memory() -> None:
    columns = StructType((Field("a", ArrayType(LongType())),))
    with pytest.raises(CorruptFileError, match="more elements than there are bytes"):
        compile_avro_decoder(columns, columns)(b"\x02" + avro.number(2**40), 0)


@given(ROWS)
def test_a_key_is_encoded_as_spark_encodes_it(one: tuple[StructType, tuple[object, ...]]) -> None:
    columns, row = one
    if "map<" in columns.name:
        with pytest.raises(UnsupportedError, match="map"):
            compile_avro_encoder(columns)
    else:
        assert compile_avro_encoder(columns)(row) == avro.record(columns, row)


def test_a_null_among_the_scalars_of_an_array_is_no_key() -> None:
    encode = compile_avro_encoder(StructType((Field("k", ArrayType(LongType())),)))
    with pytest.raises(NoSuchKeyError):
        encode(([1, None],))


def test_a_column_without_nulls_has_a_branch_as_every_column_has() -> None:
    """As seen in the timers that Spark 4.3 writes, whose time cannot be null."""
    columns = StructType((Field("expiryTimestampMs", LongType(), nullable=False),))
    data = bytes.fromhex("0296a792f9be63")
    (time_ms,) = compile_avro_decoder(columns, columns)(data, 0)
    assert compile_avro_encoder(columns)((time_ms,)) == data
