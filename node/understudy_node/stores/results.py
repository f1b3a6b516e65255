"""What a query would output, from the aggregation buffers that Spark stores for it (pure).

Only what can be computed exactly is: a count, a sum, a minimum or a maximum is its buffer; an average of numbers is one
division of doubles, as Spark's; an average of decimals is rounded half up once, to Spark's scale. Of short decimals
Spark keeps unscaled sums; that shows in the declared type only.
Results are made of the printed value, so that equal things look equal in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from understudy_shared.errors import UnderstudyError
from understudy_shared.spark.layout import DECIMAL_CONTEXT
from understudy_shared.spark.types import (
    MAX_LONG_DIGITS,
    BooleanType,
    DecimalType,
    DoubleType,
    LongType,
    SparkType,
    StructType,
    parse_schema,
)

MAX_PRECISION = 38
MAX_DOUBLE_DIGITS = 15
"""Averages up to this precision are divided as doubles (Spark's DecimalAggregates); sums up to 18 digits are longs."""
SUM_DIGITS = 10
"""Spark's sum of decimal(p,s), and the sum in its average, is decimal(p+10,s), up to 38 digits."""
AVG_DIGITS = 4
"""Spark's average of decimal(p,s) is decimal(p+4,s+4), up to 38 digits."""

Function = Literal["count", "sum", "avg", "min", "max"]
Printed = Mapping[str, object]
ResultPrinter = Callable[[Printed], dict[str, object]]
"""From a printed value to the printed result."""


class ResultError(UnderstudyError):
    """A result that the stored buffers do not give; `where` is its name."""


class ResultAlias(BaseModel):
    """One output column. `buffers` are value columns, by name or index: (sum, count) of an average, (sum, is_empty) of
    a decimal's sum, else one. `type` is the output's type; by default what Spark makes of the buffers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: Function
    buffers: tuple[str | int, ...] = Field(min_length=1, max_length=2)
    type: str | None = None


def compile_results(
    results: Mapping[str, ResultAlias], value_schema: StructType, value_names: Sequence[str]
) -> ResultPrinter:
    """A function from a printed value to its results. Raises ResultError for the first that does not fit."""
    columns = [
        (name, _column(name, result, _buffers(name, result, value_schema, value_names))[1])
        for name, result in results.items()
    ]
    return lambda printed: {name: compute(printed) for name, compute in columns}


def result_columns(
    results: Mapping[str, ResultAlias], value_schema: StructType, value_names: Sequence[str]
) -> list[dict[str, str]]:
    """Name and type of each result. Raises ResultError as `compile_results` does."""
    return [
        {"name": name, "type": _column(name, result, _buffers(name, result, value_schema, value_names))[0].name}
        for name, result in results.items()
    ]


def unused_columns(
    results: Mapping[str, ResultAlias], value_schema: StructType, value_names: Sequence[str]
) -> list[str]:
    """Value columns that no result is made of: what the announcement or the alias file could not name."""
    used = {name for key, each in results.items() for name, _ in _buffers(key, each, value_schema, value_names)}
    return [name for name in value_names if name not in used]


_Buffer = tuple[str, SparkType]
_Compute = Callable[[Printed], object]


def _buffers(name: str, result: ResultAlias, schema: StructType, names: Sequence[str]) -> list[_Buffer]:
    found = []
    for buffer in result.buffers:
        index = names.index(buffer) if buffer in names else buffer
        if not isinstance(index, int) or not 0 <= index < len(names):
            columns = ", ".join(f"{at}: {column}" for at, column in enumerate(names)) or "none"
            raise ResultError(
                f"there is no value column {buffer!r}", where=f"result {name}", fix=f"The columns are {columns}"
            )
        found.append((names[index], schema.fields[index].type))
    return found


def _column(name: str, result: ResultAlias, buffers: list[_Buffer]) -> tuple[SparkType, _Compute]:
    (first, kind), *rest = buffers
    second = rest[0][0] if rest else ""
    declared = _parsed(result.type)
    made: SparkType
    match result.function, kind, [other for _, other in rest], declared:
        case ("count", LongType(), [], _) | ("min" | "max", _, [], _):
            made, compute = kind, _itself(first)
        case "sum", LongType(), [], DecimalType() if declared.precision <= MAX_LONG_DIGITS:
            made, compute = declared, _unscaled_sum(first, declared)
        case "sum", LongType() | DoubleType(), [], _:
            made, compute = kind, _itself(first)
        case "sum", DecimalType(), [BooleanType()], _:
            made, compute = kind, _unless_empty(first, second)
        case "avg", DoubleType(), [LongType()], DecimalType() if declared.precision <= MAX_DOUBLE_DIGITS:
            made, compute = declared, _unscaled_average(first, second, declared)
        case "avg", DoubleType(), [LongType()], _:
            made, compute = kind, _average(first, second)
        case "avg", DecimalType(), [LongType()], _:
            average = _decimal_average(name, kind, declared)
            made, compute = average, _exact_average(first, second, average)
        case function, _, _, _:
            given = ", ".join(f"{buffer} {other.name}" for buffer, other in buffers)
            raise ResultError(
                f"{function} cannot be computed exactly from ({given})", where=f"result {name}", fix=_TAKES[function]
            )
    if declared is not None and declared != made:
        raise ResultError(
            f"{result.function} of these buffers is {made.name}, not {declared.name}",
            where=f"result {name}",
            fix="Leave the type out, or say which columns it is made of",
        )
    return made, compute


_TAKES: dict[str, str] = {
    "count": "A count has one buffer of type long",
    "sum": "A sum has one buffer of type long or double; of decimals two, (sum, is_empty)",
    "avg": "An average has two buffers, (sum, count): a double or a decimal, and a long",
    "min": "A minimum has one buffer",
    "max": "A maximum has one buffer",
}


def _itself(buffer: str) -> _Compute:
    return lambda printed: printed[buffer]


def _unless_empty(total: str, is_empty: str) -> _Compute:
    """Spark starts a decimal's sum at 0, and remembers beside it that nothing was added yet."""
    return lambda printed: None if printed[is_empty] else printed[total]


def _average(total: str, count: str) -> _Compute:
    def compute(printed: Printed) -> object:
        summed, counted = cast("float | str | None", printed[total]), cast("int | None", printed[count])
        if summed is None or not counted:
            return None
        # Not finite is printed as text; divided by a count it stays what it is.
        return summed if isinstance(summed, str) else summed / counted

    return compute


def _unscaled_sum(total: str, made: DecimalType) -> _Compute:
    """Up to decimal(8,s) Spark adds unscaled longs and makes a decimal of their sum."""

    def compute(printed: Printed) -> object:
        summed = cast("int | None", printed[total])
        return None if summed is None else _printed_decimal(summed, made)

    return compute


def _unscaled_average(total: str, count: str, made: DecimalType) -> _Compute:
    """Up to decimal(11,s) Spark divides doubles: the unscaled sum, the count, the power of ten; then it rounds."""
    power, unit = 10.0 ** (made.scale - AVG_DIGITS), Decimal(1).scaleb(-made.scale)

    def compute(printed: Printed) -> object:
        summed, counted = cast("float | None", printed[total]), cast("int | None", printed[count])
        if summed is None or not counted:
            return None
        rounded = Decimal(repr(summed / counted / power)).quantize(unit, ROUND_HALF_UP, DECIMAL_CONTEXT)
        return _printed_decimal(int(rounded.scaleb(made.scale, DECIMAL_CONTEXT)), made)

    return compute


def _exact_average(total: str, count: str, made: DecimalType) -> _Compute:
    """Spark cuts the quotient far behind the result's last digit and then rounds half up: one rounding, of the exact
    quotient.
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
    """With all digits of its scale; null when it has more digits than its type, as an overflow is."""
    if abs(unscaled) >= 10**made.precision:
        return None
    return f"{Decimal(unscaled).scaleb(-made.scale, DECIMAL_CONTEXT):f}"


def _decimal_average(name: str, total: DecimalType, declared: SparkType | None) -> DecimalType:
    """The average's type: by its sum, whose type tells the input's unless it is as wide as decimals get."""
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


def _parsed(type_name: str | None) -> SparkType | None:
    """A type by Spark's name of it; None for one that is not said, or that only JSON could say (a struct)."""
    if type_name is None:
        return None
    field = {"name": "result", "type": type_name, "nullable": True, "metadata": {}}
    try:
        return parse_schema(json.dumps({"type": "struct", "fields": [field]})).fields[0].type
    except UnderstudyError:
        return None
