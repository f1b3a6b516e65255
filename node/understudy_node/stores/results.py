"""The output of a query, computed from the aggregation buffers that Spark stores for it (pure).

Only exact results are computed; `FUNCTIONS` lists them. They are computed from the printed value, so that equal values
look equal in both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from understudy_node.stores import result_functions as functions
from understudy_node.stores.result_functions import (
    Buffers,
    Made,
    Make,
    Printed,
    ResultError,
    average_of,
    count_of,
    distinct_of,
    first_buffer,
    list_of,
    moments_of,
    set_of,
    sum_of,
    try_sum_of,
)
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ResultFunction
from understudy_shared.bus.messages import MAX_COLUMNS
from understudy_shared.spark.types import ArrayType, BooleanType, DoubleType, SparkType, StructType, parse_schema

ResultPrinter = Callable[[Printed], dict[str, object]]
"""A function from a printed value to the printed result."""


class ResultAlias(BaseModel):
    """One output column. `buffers` are value columns, by name or index, in Spark's order. `type` is the output's type;
    by default the type that Spark makes of the buffers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: ResultFunction
    buffers: tuple[str | int, ...] = Field(min_length=1, max_length=MAX_COLUMNS)
    type: str | None = None


@dataclass(frozen=True, slots=True)
class StoreResults:
    """The results of a store: name and type of each, the printer of all, and the value columns without a result, which
    the announcement or the alias file could not name.
    """

    types: tuple[tuple[str, SparkType], ...]
    print: ResultPrinter
    unused: tuple[str, ...]


def compile_results(
    results: Mapping[str, ResultAlias], value_schema: StructType, value_names: Sequence[str]
) -> StoreResults:
    """Compile the results of a value. Raises ResultError for the first that does not fit."""
    made: dict[str, Made] = {}
    used: set[str] = set()
    for name, result in results.items():
        buffers = _buffers(name, result, value_schema, value_names)
        made[name] = _made(result, buffers)
        used.update(buffers.columns)

    def print_results(printed: Printed) -> dict[str, object]:
        return {name: compute(printed) for name, (_, compute) in made.items()}

    return StoreResults(
        tuple((name, result_type) for name, (result_type, _) in made.items()),
        print_results,
        tuple(name for name in value_names if name not in used),
    )


def _buffers(name: str, result: ResultAlias, schema: StructType, names: Sequence[str]) -> Buffers:
    found, by_name = [], {column: index for index, column in enumerate(names)}
    for buffer in result.buffers:
        index = by_name.get(buffer, buffer) if isinstance(buffer, str) else buffer
        if not isinstance(index, int) or not 0 <= index < len(names):
            columns = ", ".join(f"{at}: {column}" for at, column in enumerate(names)) or "none"
            raise ResultError(
                f"there is no value column {buffer!r}", where=f"result {name}", fix=f"The columns are {columns}"
            )
        found.append(index)
    types = tuple(schema.fields[index].type for index in found)
    return Buffers(name, tuple(names[index] for index in found), types, _parsed(result.type))


def _made(result: ResultAlias, buffers: Buffers) -> Made:
    make, takes = FUNCTIONS[result.function]
    made = make(buffers)
    where = f"result {buffers.result}"
    if made is None:
        columns = zip(buffers.columns[:_SHOWN_BUFFERS], buffers.types, strict=False)
        given = ", ".join(f"{column} {kind.name}" for column, kind in columns)
        more = ", ..." if len(buffers.columns) > _SHOWN_BUFFERS else ""
        raise ResultError(f"{result.function} cannot be computed exactly from ({given}{more})", where=where, fix=takes)
    if buffers.declared is not None and buffers.declared != made[0]:
        raise ResultError(
            f"{result.function} of these buffers is {made[0].name}, not {buffers.declared.name}",
            where=where,
            fix="Leave the type out, or say which columns it is made of",
        )
    return made


_SHOWN_BUFFERS = 8


def _only(buffers: Buffers) -> Made | None:
    return (buffers.types[0], first_buffer(buffers.columns[0])) if len(buffers.columns) == 1 else None


def _first_or_last(buffers: Buffers) -> Made | None:
    match buffers.types:
        case (kind, BooleanType()):
            return kind, first_buffer(buffers.columns[0])
    return None


def _by(buffers: Buffers) -> Made | None:
    return (buffers.types[0], first_buffer(buffers.columns[0])) if len(buffers.columns) == 2 else None


def _product(buffers: Buffers) -> Made | None:
    return _only(buffers) if buffers.types == (DoubleType(),) else None


_VARIANCE = "It has the buffers (n, avg, m2) of type double"
_COVARIANCE = "It has the buffers (n, xAvg, yAvg, ck) of type double"
_CORRELATION = "It has the buffers (n, xAvg, yAvg, ck, xMk, yMk) of type double"
_REGRESSION = "It has the buffers (n, xAvg, yAvg, ck) and (n, avg, m2) of type double"
_COLLECTED = 'It has one buffer of type binary, and needs a type, for example type = "array<string>"'
_BITS = "It has one buffer, of the type of the result"

FUNCTIONS: Mapping[ResultFunction, tuple[Make, str]] = {
    "count": (count_of, "A count has one buffer of type long"),
    "sum": (sum_of, "A sum has one buffer of type long or double; of decimals two, (sum, is_empty)"),
    "try_sum": (try_sum_of, "A sum has one buffer of type double; of longs and decimals two, (sum, is_empty)"),
    "avg": (average_of, "An average has two buffers, (sum, count): a double or a decimal, and a long"),
    "min": (_only, "A minimum has one buffer"),
    "max": (_only, "A maximum has one buffer"),
    "first": (_first_or_last, "It has two buffers, the value and a boolean"),
    "last": (_first_or_last, "It has two buffers, the value and a boolean"),
    "min_by": (_by, "It has two buffers: the value, and what it was ordered by"),
    "max_by": (_by, "It has two buffers: the value, and what it was ordered by"),
    "bit_and": (_only, _BITS),
    "bit_or": (_only, _BITS),
    "bit_xor": (_only, _BITS),
    "product": (_product, "A product has one buffer of type double"),
    "var_pop": (moments_of(functions.variance_pop, 3), _VARIANCE),
    "var_samp": (moments_of(functions.variance_samp, 3), _VARIANCE),
    "stddev_pop": (moments_of(functions.stddev_pop, 3), _VARIANCE),
    "stddev_samp": (moments_of(functions.stddev_samp, 3), _VARIANCE),
    "skewness": (moments_of(functions.skewness, 4), "It has the buffers (n, avg, m2, m3) of type double"),
    "kurtosis": (moments_of(functions.kurtosis, 5), "It has the buffers (n, avg, m2, m3, m4) of type double"),
    "covar_pop": (moments_of(functions.covariance_pop, 4), _COVARIANCE),
    "covar_samp": (moments_of(functions.covariance_samp, 4), _COVARIANCE),
    "corr": (moments_of(functions.correlation, 6), _CORRELATION),
    "corr_4_2": (moments_of(functions.correlation_4_2, 6), _CORRELATION),
    "regr_sxx": (moments_of(functions.regression_sxx, 3), _VARIANCE),
    "regr_sxy": (moments_of(functions.regression_sxy, 4), _COVARIANCE),
    "regr_r2": (moments_of(functions.regression_r2, 6), _CORRELATION),
    "regr_slope": (moments_of(functions.regression_slope, 7), _REGRESSION),
    "regr_intercept": (moments_of(functions.regression_intercept, 7), _REGRESSION),
    "regr_intercept_4_2": (moments_of(functions.regression_intercept_4_2, 7), _REGRESSION),
    "approx_count_distinct": (distinct_of, "It has all words of its registers: 52 buffers of type long by default"),
    "collect_list": (list_of, _COLLECTED),
    "collect_set": (set_of, _COLLECTED),
}
"""Makers of each function's result, and the buffers that it takes."""

_ARRAY = re.compile(r"array<(.+)>")


def _parsed(type_name: str | None) -> SparkType | None:
    """Parse a type by Spark's name or its JSON; None for a missing or unknown type."""
    if type_name is None:
        return None
    array = _ARRAY.fullmatch(type_name)
    if array is not None:
        element = _parsed(array[1])
        return None if element is None else ArrayType(element)
    field = {"name": "result", "type": type_name, "nullable": True, "metadata": {}}
    try:
        if type_name.startswith("{"):
            field["type"] = json.loads(type_name)
        return parse_schema(json.dumps({"type": "struct", "fields": [field]})).fields[0].type
    except (UnderstudyError, ValueError, RecursionError):
        return None
