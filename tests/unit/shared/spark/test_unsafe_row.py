"""UnsafeRow bytes: exact, invertible, and refused when they are not a row of the schema."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.values import same, schemas, schemas_and_rows, struct_of

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.types import (
    ArrayType,
    ByteType,
    DecimalType,
    IntType,
    LongType,
    MapType,
    SparkType,
    StringType,
    StructType,
    VoidType,
)
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

LONG_42 = "2a00000000000000"
ZERO = "0000000000000000"


@pytest.mark.parametrize(
    ("types", "row", "expected"),
    [
        ((), (), ""),
        ((StringType(),), ("abcdefg",), ZERO + "0700000010000000" + "6162636465666700"),
        ((StringType(),), (None,), "0100000000000000" + ZERO),
        ((IntType(), LongType()), (-1, 42), ZERO + "ffffffff00000000" + LONG_42),
        ((DecimalType(10, 2),), (Decimal("0.42"),), ZERO + LONG_42),
        ((DecimalType(30, 2),), (Decimal("0.42"),), ZERO + "0100000010000000" + "2a00000000000000" + ZERO),
        ((DecimalType(30, 2),), (None,), "0100000000000000" + "0000000010000000" + ZERO * 2),
        ((VoidType(),), (None,), "0100000000000000" + ZERO),
        (
            (ArrayType(ByteType()),),
            ([1, None, 3],),
            ZERO + "1800000010000000" + "0300000000000000" + "0200000000000000" + "0100030000000000",
        ),
    ],
    ids=["empty", "string", "null string", "int long", "decimal", "wide", "null wide", "void", "array"],
)
def test_rows_have_the_bytes_of_spark(types: tuple[SparkType, ...], row: tuple[object, ...], expected: str) -> None:
    assert compile_row_encoder(struct_of(*types))(row).hex() == expected


@given(schemas_and_rows())
def test_decoding_gives_back_what_was_encoded(schema_and_row: tuple[StructType, tuple[object, ...]]) -> None:
    schema, row = schema_and_row
    data = compile_row_encoder(schema)(row)
    assert len(data) % 8 == 0
    assert same(compile_row_decoder(schema)(data), row)


@given(schemas_and_rows(), st.data())
def test_a_damaged_row_is_refused_or_read_and_nothing_else(
    schema_and_row: tuple[StructType, tuple[object, ...]], data: st.DataObject
) -> None:
    schema, row = schema_and_row
    encoded = bytearray(compile_row_encoder(schema)(row))
    for _ in range(data.draw(st.integers(0, 3)) if encoded else 0):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        compile_row_decoder(schema)(bytes(encoded[:cut]))
    except CorruptFileError as error:
        assert error.where  # noqa: PT017


@given(schemas(), st.binary(max_size=200))
def test_any_bytes_are_a_row_or_refused(schema: StructType, data: bytes) -> None:
    try:
        assert len(compile_row_decoder(schema)(data)) == len(schema.fields)
    except CorruptFileError as error:
        assert "not a row" in error.what or "damaged" in error.fix  # noqa: PT017


BAD: dict[str, tuple[SparkType, str]] = {
    "short": (LongType(), "00" * 15),
    "long": (LongType(), "00" * 24),
    "null bit of no column": (LongType(), "0200000000000000" + LONG_42),
    "no variable slot": (StringType(), "00" * 8),
    "string past the end": (StringType(), ZERO + "0900000010000000" + "6162636465666700"),
    "string inside the slots": (StringType(), ZERO + "0800000008000000" + "6162636465666700"),
    "not whole words": (StringType(), ZERO + "0100000010000000" + "61"),
    "decimal of 17 bytes": (DecimalType(38, 0), ZERO + "1100000010000000" + ZERO * 3),
    "array too long": (ArrayType(IntType()), ZERO + "1000000010000000" + "ffffffffffffff7f" + ZERO),
    "array of negative length": (ArrayType(IntType()), ZERO + "1000000010000000" + "ffffffffffffffff" + ZERO),
    "map keys past the end": (MapType(IntType(), IntType()), ZERO + "1000000010000000" + "6400000000000000" + ZERO),
}


@pytest.mark.parametrize(("spark_type", "data"), BAD.values(), ids=BAD)
def test_bytes_that_do_not_fit_are_refused(spark_type: SparkType, data: str) -> None:
    with pytest.raises(CorruptFileError):
        compile_row_decoder(struct_of(spark_type))(bytes.fromhex(data))
