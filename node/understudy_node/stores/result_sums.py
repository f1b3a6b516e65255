"""Counts, sums and averages from their buffers (pure).

An average of numbers is one division of doubles, as Spark's; an average of decimals is rounded half up once, to Spark's
scale. For short decimals Spark stores unscaled sums; that shows in the declared type only.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import cast

from understudy_node.stores.result_columns import Buffers, Compute, Made, Printed, ResultError, first_buffer
from understudy_shared.spark.layout import DECIMAL_CONTEXT
from understudy_shared.spark.types import (
    MAX_LONG_DIGITS,
    BooleanType,
    DecimalType,
    DoubleType,
    LongType,
    SparkType,
)

MAX_PRECISION = 38
MAX_DOUBLE_DIGITS = 15
"""Precision up to which averages are divided as doubles (Spark's DecimalAggregates); sums up to 18 digits are longs."""
SUM_DIGITS = 10
"""Digits that a sum adds: Spark's sum of decimal(p,s), in its average too, is decimal(p+10,s), up to 38 digits."""
AVG_DIGITS = 4
"""Digits that an average adds: Spark's average of decimal(p,s) is decimal(p+4,s+4), up to 38 digits."""


def count_of(buffers: Buffers) -> Made | None:
    """Return a count, which is its buffer."""
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
    """Divide an average, as Spark divides it."""
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
    """Average with one rounding of the exact quotient: Spark cuts it far behind the result's last digit and then rounds
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
    """Return the average's type: by its sum, whose type determines the input's unless it is as wide as decimals get."""
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
