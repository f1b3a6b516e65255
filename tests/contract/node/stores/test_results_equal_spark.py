"""The estimate of a HyperLogLog++ sketch is the one that Spark's own class makes of the same registers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tools.hyperloglog_tables import tables

from understudy_node.stores import result_functions
from understudy_node.stores.result_functions import (
    LEAST_PRECISION,
    REGISTER_BITS,
    REGISTERS_PER_WORD,
    TABLES,
    estimate,
    precision_of,
    words_of,
)


def test_the_tables_are_those_of_spark(spark: SparkSession) -> None:
    kept = Path(result_functions.__file__).with_name(TABLES).read_text()
    assert json.loads(kept) == tables(spark)


@pytest.mark.parametrize("bits", [LEAST_PRECISION, 5, 6, 7, 9, 12])
def test_an_estimate_is_what_spark_makes_of_the_same_registers(spark: SparkSession, bits: int) -> None:
    """From nearly empty to far above where biases end: each of the three ways to count is taken."""
    helper = spark._jvm.org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper(  # type: ignore[union-attr]
        1.107 / 2 ** (bits / 2)
    )
    assert helper.numWords() == words_of(bits)
    rng = random.Random(bits)
    for share in (0.0, 0.001, 0.3, 0.9, 1.0, 1.2, 2.0, 2.6, 4.0, 5.1, 20.0, 1e6):
        words = registers_of(rng, bits, round(share * 2**bits))
        assert estimate(words, precision_of(bits)) == helper.query(row_of(spark, words), 0), f"{share}"


def registers_of(rng: random.Random, bits: int, values: int) -> list[int]:
    """The words of a sketch that has seen about so many values."""
    registers = [0] * 2**bits
    for _ in range(min(values, 6 * 2**bits)):
        place = rng.randrange(2**bits)
        registers[place] = max(registers[place], leading(rng))
    if values > 6 * 2**bits:  # each register is the largest of many
        registers = [min(max(values // 2**bits, 1).bit_length() + leading(rng), 30) for _ in registers]
    words = [0] * words_of(bits)
    for place, register in enumerate(registers):
        words[place // REGISTERS_PER_WORD] |= register << REGISTER_BITS * (place % REGISTERS_PER_WORD)
    return words


def leading(rng: random.Random) -> int:
    """One more than the zeros before the first one of a random number."""
    return 31 - (rng.getrandbits(30) | 1).bit_length()


def row_of(spark: SparkSession, words: list[int]) -> Any:
    """A row of longs in the JVM."""
    assert spark._jvm is not None
    row = spark._jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(len(words))
    for index, word in enumerate(words):
        row.setLong(index, word)
    return row
