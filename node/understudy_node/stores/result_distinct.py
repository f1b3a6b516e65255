"""The estimate of `approx_count_distinct` from the registers that Spark stores: HyperLogLog++ (pure).

The registers are columns of longs, ten of six bits in each (`HyperLogLogPlusPlusHelper`). The number of columns gives
the number of registers, and so the precision. Biases come from the tables of the paper, as Spark has them
(`tools/hyperloglog_tables.py` takes them out of it):
https://research.google/pubs/hyperloglog-in-practice-algorithmic-engineering-of-a-state-of-the-art-cardinality-estimation-algorithm
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import cast

from understudy_node.stores.result_columns import Buffers, Made, Printed
from understudy_shared.bus.messages import MAX_COLUMNS
from understudy_shared.spark.types import LongType

TABLES = "hyperloglog.json"
LEAST_PRECISION, MOST_PRECISION = 4, 15
"""Range of the precision: more than 15 bits would need more columns than a store may have."""

REGISTER_BITS, REGISTERS_PER_WORD = 6, 10
_PAIR_BITS = 2 * REGISTER_BITS
_NEIGHBOURS = 6
_ALPHA = {4: 0.673, 5: 0.697, 6: 0.709}


@dataclass(frozen=True, slots=True)
class Precision:
    """The constants for one number of registers: raw estimates with the bias of each, and where counting zeros ends."""

    bits: int
    threshold: float
    raw: Sequence[float]
    bias: Sequence[float]

    @property
    def registers(self) -> int:
        return 1 << self.bits


def distinct_of(buffers: Buffers) -> Made | None:
    """Return the estimate, by all words of the registers in their order."""
    bits = _BITS_BY_WORDS.get(len(buffers.columns))
    if bits is None or any(kind != LongType() for kind in buffers.types):
        return None
    precision, columns = precision_of(bits), buffers.columns

    def compute(printed: Printed) -> object:
        words = [cast("int | None", printed[column]) for column in columns]
        known = [word for word in words if word is not None]
        return estimate(known, precision) if len(known) == len(words) else None

    return LongType(), compute


def words_of(bits: int) -> int:
    """Return how many words hold 2**bits registers; Spark always adds one."""
    return (1 << bits) // REGISTERS_PER_WORD + 1


def estimate(words: Sequence[int], precision: Precision) -> int:
    """Estimate the number of different values, with Spark's result."""
    registers = precision.registers
    inverse, zeros = _sums(words, registers)
    alpha = _ALPHA.get(precision.bits, 0.7213 / (1.0 + 1.079 / registers))
    raw = alpha * registers * registers / inverse
    if zeros:
        counted = registers * math.log(registers / zeros)
        # The second limit is that of the first HyperLogLog paper; Spark uses either one.
        if counted <= precision.threshold or raw <= 2.5 * registers:
            return _rounded(counted)
    return _rounded(raw - _bias(raw, precision) if raw < 5.0 * registers else raw)


def _sums(words: Sequence[int], registers: int) -> tuple[float, int]:
    """Return the sum of 2**-register, and how many registers are zero. Powers of two add up exactly, in any order."""
    inverse, zeros, left = 0.0, 0, registers
    for word in words:
        for shift in range(0, REGISTER_BITS * REGISTERS_PER_WORD, _PAIR_BITS):
            if left >= 2:
                pair_inverse, pair_zeros = _PAIRS[word >> shift & 0xFFF]
                inverse += pair_inverse
                zeros += pair_zeros
                left -= 2
    return inverse, zeros


def _bias(raw: float, precision: Precision) -> float:
    """Return the mean bias of the six raw estimates that lie nearest."""
    estimates, biases = precision.raw, precision.bias
    low = max(bisect_left(estimates, raw) - _NEIGHBOURS + 1, 0)
    high = min(low + _NEIGHBOURS, len(estimates))
    while high < len(estimates) and (raw - estimates[high]) ** 2 < (raw - estimates[low]) ** 2:
        low, high = low + 1, high + 1
    total = 0.0
    for bias in biases[low:high]:
        total += bias
    return total / (high - low)


def _rounded(value: float) -> int:
    """Round to the nearest, halves up, as Java rounds."""
    return math.floor(value + 0.5)


@cache
def precision_of(bits: int) -> Precision:
    """Read the tables of one precision, when they are first needed."""
    tables = json.loads(files("understudy_node.stores").joinpath(TABLES).read_text())
    return Precision(bits, **tables[str(bits)])


def _pair(word: int) -> tuple[float, int]:
    registers = word & 0x3F, word >> REGISTER_BITS
    return sum(2.0**-register for register in registers), registers.count(0)


_PAIRS = [_pair(word) for word in range(1 << _PAIR_BITS)]
"""Values of two registers at once: there are 512 registers by default, and a lookup waits."""

_BITS_BY_WORDS = {words_of(bits): bits for bits in range(LEAST_PRECISION, MOST_PRECISION + 1)}
assert max(_BITS_BY_WORDS) <= MAX_COLUMNS
