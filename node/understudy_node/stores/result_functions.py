"""The functions that compute results of aggregation buffers, exactly as Spark does (pure).

Counts, sums and averages; collected lists; variance and other functions of central moments; approximate distinct
counts. Where Spark's own expression divides by zero the result is null: with ANSI rules the query fails before it
outputs such a row.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib.resources import files
from typing import cast

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.bus.messages import MAX_COLUMNS
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import (
    MAX_LONG_DIGITS,
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DecimalType,
    DoubleType,
    Field,
    LongType,
    SparkType,
    StructType,
)
from understudy_shared.spark.unsafe_row import DECIMAL_CONTEXT

Printed = Mapping[str, object]
"""A value as an answer prints it, by column."""

Compute = Callable[[Printed], object]
"""A function from a printed value to one printed result."""

Made = tuple[SparkType, Compute]
"""The type of a result, and the function that computes it."""


class ResultError(UnderstudyError):
    """The stored buffers do not give this result; `where` is its name."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of one result: names and types of their value columns. `declared` is its announced type."""

    result: str
    columns: tuple[str, ...]
    types: tuple[SparkType, ...]
    declared: SparkType | None


Make = Callable[[Buffers], Made | None]
"""A function from the buffers of a result to its type and computation; None if they do not fit the function."""


def first_buffer(printed_column: str) -> Compute:
    """Return a function for a result that is a buffer, as it is stored."""
    return lambda printed: printed[printed_column]


def number(printed: object) -> float | None:
    """Parse a double as it was stored: non-finite values are printed as text."""
    return None if printed is None else float(cast("float | str", printed))


def printed_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


MAX_PRECISION = 38
MAX_DOUBLE_DIGITS = 15
"""Precision up to which averages are divided as doubles (Spark's DecimalAggregates); sums up to 18 digits are longs."""
SUM_DIGITS = 10
"""Digits that a sum adds: Spark's sum of decimal(p,s), in its average too, is decimal(p+10,s), up to 38 digits."""
AVG_DIGITS = 4
"""Digits that an average adds: Spark's average of decimal(p,s) is decimal(p+4,s+4), up to 38 digits."""


def count_of(buffers: Buffers) -> Made | None:
    return (LongType(), first_buffer(buffers.columns[0])) if buffers.types == (LongType(),) else None


def sum_of(buffers: Buffers) -> Made | None:
    """Return a sum, which is its buffer, unless nothing was added; for short decimals it is converted to a decimal."""
    first, declared = buffers.columns[0], buffers.declared
    match buffers.types:
        case (LongType(),) if isinstance(declared, DecimalType) and declared.precision <= MAX_LONG_DIGITS:
            return declared, _unscaled_sum(first, declared)
        case (LongType() | DoubleType(),):
            return buffers.types[0], first_buffer(first)
        case (DecimalType(), BooleanType()):
            return buffers.types[0], _unless_empty(first_buffer(first), buffers.columns[1])
    return None


def try_sum_of(buffers: Buffers) -> Made | None:
    """Return a sum. For whole numbers Spark also stores whether nothing was added: otherwise null is an overflow."""
    if buffers.types != (LongType(), BooleanType()):
        return sum_of(buffers)
    total, is_empty = buffers.columns
    made = sum_of(Buffers(buffers.result, (total,), (LongType(),), buffers.declared))
    assert made is not None, "a sum of longs is known"
    return made[0], _unless_empty(made[1], is_empty)


def average_of(buffers: Buffers) -> Made | None:
    """Divide an average, as Spark divides it: numbers once, as doubles; decimals are rounded half up once, to Spark's
    scale.
    """
    declared = buffers.declared
    match buffers.types:
        case (DoubleType(), LongType()):
            if isinstance(declared, DecimalType) and declared.precision <= MAX_DOUBLE_DIGITS:
                return declared, _unscaled_average(buffers.columns[0], buffers.columns[1], declared)
            return DoubleType(), _average(*buffers.columns)
        case (DecimalType() as total, LongType()):
            average = _decimal_average(buffers.result, total, declared)
            return average, _exact_average(buffers.columns[0], buffers.columns[1], average)
    return None


def _unless_empty(total: Compute, is_empty: str) -> Compute:
    """Return null for an empty sum: Spark starts a decimal's sum at 0, and stores whether anything was added."""
    return lambda printed: None if printed[is_empty] else total(printed)


def _average(total: str, count: str) -> Compute:
    def compute(printed: Printed) -> object:
        summed, counted = cast("float | str | None", printed[total]), cast("int | None", printed[count])
        if summed is None or not counted:
            return None
        # Non-finite sums are printed as text; division by a count does not change them.
        return summed if isinstance(summed, str) else summed / counted

    return compute


def _unscaled_sum(total: str, made: DecimalType) -> Compute:
    """Convert a sum: up to decimal(8,s) Spark adds unscaled longs and makes a decimal of their sum."""

    def compute(printed: Printed) -> object:
        summed = cast("int | None", printed[total])
        return None if summed is None else _printed_decimal(summed, made)

    return compute


def _unscaled_average(total: str, count: str, made: DecimalType) -> Compute:
    """Average as Spark up to decimal(11,s): it divides the unscaled sum, as a double, by count and power of ten."""
    power, unit = 10.0 ** (made.scale - AVG_DIGITS), Decimal(1).scaleb(-made.scale)

    def compute(printed: Printed) -> object:
        summed, counted = cast("float | None", printed[total]), cast("int | None", printed[count])
        if summed is None or not counted:
            return None
        rounded = Decimal(repr(summed / counted / power)).quantize(unit, ROUND_HALF_UP, DECIMAL_CONTEXT)
        return _printed_decimal(int(rounded.scaleb(made.scale, DECIMAL_CONTEXT)), made)

    return compute


def _exact_average(total: str, count: str, made: DecimalType) -> Compute:
    """Average with one rounding of the exact quotient: Spark cuts it far after the result's last digit and then rounds
    half up.
    """

    def compute(printed: Printed) -> object:
        summed, counted = cast("str | None", printed[total]), cast("int | None", printed[count])
        if summed is None or not counted:
            return None
        numerator, denominator = Decimal(summed).as_integer_ratio()
        doubled, denominator = 2 * abs(numerator) * 10**made.scale, denominator * counted
        unscaled = (doubled + denominator) // (2 * denominator)
        return _printed_decimal(-unscaled if numerator < 0 else unscaled, made)

    return compute


def _printed_decimal(unscaled: int, made: DecimalType) -> str | None:
    """Print with all digits of its scale; null when it has more digits than its type, as an overflow is."""
    if abs(unscaled) >= 10**made.precision:
        return None
    return f"{Decimal(unscaled).scaleb(-made.scale, DECIMAL_CONTEXT):f}"


def _decimal_average(name: str, total: DecimalType, declared: SparkType | None) -> DecimalType:
    """Return the average's type: by its sum's type, which determines the input's unless it is as wide as decimals
    get.
    """
    if total.precision < MAX_PRECISION:
        return _average_of(total.precision - SUM_DIGITS, total.scale)
    if declared is None:
        raise ResultError(
            f"the type of this average does not follow from its sum, {total.name}",
            where=f"result {name}",
            fix='Say it, for example type = "decimal(38,6)"',
        )
    possible = [_average_of(digits, total.scale) for digits in range(MAX_PRECISION - SUM_DIGITS, MAX_PRECISION + 1)]
    return next((average for average in possible if average == declared), possible[-1])


def _average_of(precision: int, scale: int) -> DecimalType:
    return DecimalType(min(precision + AVG_DIGITS, MAX_PRECISION), min(scale + AVG_DIGITS, MAX_PRECISION))


def list_of(buffers: Buffers) -> Made | None:
    """Return the elements in stored order, from one binary column with a row of one array. It does not contain the type
    of the elements, so the result's type must be given.
    """
    if buffers.types != (BinaryType(),):
        return None
    return _collected(buffers, _declared(buffers))


def set_of(buffers: Buffers) -> Made | None:
    """Return the elements in stored order; Spark promises no order."""
    if buffers.types != (BinaryType(),):
        return None
    declared = _declared(buffers)
    if declared.element != BinaryType():
        return _collected(buffers, declared)
    # Byte arrays are not equal by their content in Java: Spark stores each as an array of numbers.
    _, numbers_of = _collected(buffers, ArrayType(ArrayType(ByteType())))

    def compute(printed: Printed) -> object:
        found = cast("list[list[int]] | None", numbers_of(printed))
        return None if found is None else [b64encode(bytes(each & 0xFF for each in one)).decode() for one in found]

    return declared, compute


def _declared(buffers: Buffers) -> ArrayType:
    if isinstance(buffers.declared, ArrayType):
        return buffers.declared
    raise ResultError(
        "a list is stored without the type of its elements",
        where=f"result {buffers.result}",
        fix='Say it, for example type = "array<string>"',
    )


def _collected(buffers: Buffers, stored: ArrayType) -> Made:
    (column,), row = buffers.columns, StructType((Field("elements", stored),))
    print_row = compile_json_printer(row)

    def compute(printed: Printed) -> object:
        data = printed[column]
        return None if data is None else print_row(b64decode(str(data)))["elements"]

    return stored, compute


Formula = Callable[..., float | None]
"""A function from the doubles of the buffers to the result. It is called for at least one row."""


def variance_pop(n: float, avg: float, m2: float) -> float | None:
    return _divided(m2, n)


def variance_samp(n: float, avg: float, m2: float) -> float | None:
    return _divided(m2, n - 1.0)


def stddev_pop(n: float, avg: float, m2: float) -> float | None:
    return _root(_divided(m2, n))


def stddev_samp(n: float, avg: float, m2: float) -> float | None:
    return _root(_divided(m2, n - 1.0))


def skewness(n: float, avg: float, m2: float, m3: float) -> float | None:
    return None if m2 == 0.0 else _divided(_sqrt(n) * m3, _sqrt(m2 * m2 * m2))


def kurtosis(n: float, avg: float, m2: float, m3: float, m4: float) -> float | None:
    ratio = None if m2 == 0.0 else _divided(n * m4, m2 * m2)
    return None if ratio is None else ratio - 3.0


def covariance_pop(n: float, x_avg: float, y_avg: float, ck: float) -> float | None:
    return _divided(ck, n)


def covariance_samp(n: float, x_avg: float, y_avg: float, ck: float) -> float | None:
    return _divided(ck, n - 1.0)


def correlation(*stored: float) -> float | None:
    """Compute the correlation as Spark does from 4.3 on: nothing correlates with a constant, not even NaN."""
    x_mk, y_mk = stored[4:]
    return None if x_mk == 0.0 or y_mk == 0.0 else correlation_4_2(*stored)


def correlation_4_2(*stored: float) -> float | None:
    """Compute the correlation as Spark does up to 4.2."""
    n, _x_avg, _y_avg, ck, x_mk, y_mk = stored
    return None if n == 1.0 else _divided(ck, _sqrt(x_mk * y_mk))


def regression_sxx(n: float, avg: float, m2: float) -> float | None:
    return m2


def regression_sxy(n: float, x_avg: float, y_avg: float, ck: float) -> float | None:
    return ck


def regression_r2(*stored: float) -> float | None:
    _n, _x_avg, _y_avg, ck, x_mk, y_mk = stored
    if y_mk == 0.0:
        return None
    if x_mk == 0.0:
        return 1.0
    root = _divided(ck, _sqrt(x_mk * y_mk))
    return None if root is None else root * root


def regression_slope(*stored: float) -> float | None:
    """Compute the slope from the buffers of a covariance, followed by the variance of x."""
    _n, _x_avg, _y_avg, ck, _n_x, _avg, m2 = stored
    return _divided(ck, m2)


def regression_intercept(*stored: float) -> float | None:
    x_avg, y_avg, slope = stored[1], stored[2], regression_slope(*stored)
    return None if slope is None else y_avg - slope * x_avg


def regression_intercept_4_2(n: float, x_avg: float, y_avg: float, *others: float) -> float | None:
    """Compute the intercept as Spark does up to 4.2: it merges the buffers with empty ones first.

    That rounds the averages. No other result depends on them.
    """
    return regression_intercept(n, 0.0 + x_avg / n * n, 0.0 + y_avg / n * n, *others)


def moments_of(formula: Formula, count: int) -> Callable[[Buffers], Made | None]:
    """Make the result of a formula over so many doubles, the first of which is the number of rows (Spark's
    `CentralMomentAgg`, `Covariance`, `PearsonCorrelation`). A formula has Spark's operations in Spark's order, because
    each of them rounds.
    """

    def make(buffers: Buffers) -> Made | None:
        if buffers.types != (DoubleType(),) * count:
            return None

        def compute(printed: Printed) -> object:
            stored = [number(printed[column]) for column in buffers.columns]
            # Spark's own buffers are never null; a column that an alias file names for one may be.
            result = None if stored[0] == 0.0 or None in stored else formula(*stored)
            return None if result is None else printed_number(result)

        return DoubleType(), compute

    return make


def _divided(dividend: float, divisor: float) -> float | None:
    """Divide; null by zero, as Spark's `/`. Python's raises for it, and overflows to infinity as Java's."""
    return None if divisor == 0.0 else dividend / divisor


def _sqrt(value: float) -> float:
    """Return the root; NaN for a negative number, as in Java; Python's raises."""
    return math.nan if value < 0.0 else math.sqrt(value)


def _root(value: float | None) -> float | None:
    return None if value is None else _sqrt(value)


TABLES = "hyperloglog.json"
LEAST_PRECISION, MOST_PRECISION = 4, 15
"""Range of the precision: more than 15 bits would need more columns than a store may have."""

REGISTER_BITS, REGISTERS_PER_WORD = 6, 10
_PAIR_BITS = 2 * REGISTER_BITS
_NEIGHBOURS = 6
_ALPHA = {4: 0.673, 5: 0.697, 6: 0.709}


@dataclass(frozen=True, slots=True)
class Precision:
    """The constants for one number of registers: raw estimates with their biases, and the limit of linear counting."""

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
    """Estimate the number of distinct values, with Spark's result: HyperLogLog++ (`HyperLogLogPlusPlusHelper`).

    The registers are columns of longs, ten of six bits in each. Their number gives the precision. Biases come from the
    tables of the paper, as Spark has them (`tools/hyperloglog_tables.py` takes them out of it):
    https://research.google/pubs/hyperloglog-in-practice-algorithmic-engineering-of-a-state-of-the-art-cardinality-estimation-algorithm
    """
    registers = precision.registers
    inverse, zeros = _sums(words, registers)
    alpha = _ALPHA.get(precision.bits, 0.7213 / (1.0 + 1.079 / registers))
    raw = alpha * registers * registers / inverse
    if zeros:
        counted = registers * math.log(registers / zeros)
        # The second limit is from the first HyperLogLog paper; Spark uses either one.
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
