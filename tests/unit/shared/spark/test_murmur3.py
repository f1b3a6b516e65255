"""The partitioner's hash: Spark's published values, and the reference algorithm on everything else."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.values import struct_of

from understudy_shared.spark.murmur3 import compile_row_hash, hash_bytes
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntType,
    LongType,
    SparkType,
    StringType,
)


@pytest.mark.parametrize(
    ("spark_type", "value", "expected"),
    [
        (IntType(), 1, -559580957),
        (LongType(), 1, -1712319331),
        (StringType(), "abc", 1322437556),
        (StringType(), "日本語é", -1596975701),
        (DoubleType(), -0.0, -1670924195),
        (DoubleType(), float("nan"), -1281358385),
        (DecimalType(10, 2), Decimal("12.34"), -1028144669),
        (DecimalType(30, 2), Decimal("12.34"), 1123058251),
        (DateType(), 19723, -456589419),
        (BinaryType(), bytes.fromhex("00ff80"), -2052482636),
        (ArrayType(IntType()), [1, None, 2], -222940379),
        (IntType(), None, 42),
    ],
)
def test_values_hash_as_in_spark(spark_type: SparkType, value: object, expected: int) -> None:
    assert compile_row_hash(struct_of(spark_type))((value,)) == expected


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1))
def test_bytes_hash_as_the_written_out_algorithm(data: bytes, seed: int) -> None:
    assert hash_bytes(data, seed) == spark_murmur3(data, seed)


def spark_murmur3(data: bytes, seed: int) -> int:
    """Murmur3_x86_32 as Spark writes it: no standard tail, each remaining byte is a signed block."""
    h = seed
    whole = len(data) & ~3
    blocks = [int.from_bytes(data[i : i + 4], "little") for i in range(0, whole, 4)]
    blocks += [(byte - 256 if byte > 127 else byte) & 0xFFFFFFFF for byte in data[whole:]]
    for block in blocks:
        k = rotated(block * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        h = (rotated(h ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & 0xFFFFFFFF
