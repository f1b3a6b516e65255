"""The filter of a scan: comparisons of columns with values, all of which must hold (pure).

Values compare as Spark compares them: null never matches a comparison, NaN is equal to itself and greater than every
other number, -0.0 is 0.0, strings compare by their UTF-8 bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.base.errors import BadKeyError
from understudy_shared.base.texts import clipped
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import Column, Columns
from understudy_shared.spark.json_values import compile_json_parser, compile_segment_parser, example_of
from understudy_shared.spark.scalar_parser import is_scalar
from understudy_shared.spark.types import (
    BINARY_COLLATION,
    BinaryType,
    CalendarIntervalType,
    DoubleType,
    Field,
    FloatType,
    SparkType,
    StringType,
    StructType,
    VoidType,
)

MAX_TERMS: Final = 32
MAX_WHERE_BYTES: Final = 8 * 1024
"""Limit on a filter as JSON. It travels in URLs, and is judged for each row."""

WHERE: Final = "where"
FROM: Final = "from"
TO: Final = "to"
_FORM: Final = 'Send [["column", "<", value], ...] as JSON; operators are = != < <= > >= in is_null not_null'

Matches = Callable[[Any], bool]
"""A function that judges a typed value."""

Order = Callable[[Any], Any]
"""A function from a value to one that Python compares as Spark compares the value."""

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NULLS: Final[Mapping[str, Matches]] = {
    "is_null": lambda value: value is None,
    "not_null": lambda value: value is not None,
}


class RawTerm(NamedTuple):
    """A comparison as it was sent. `literal` is parsed JSON; None for an operator without a value."""

    column: str
    op: str
    literal: object

    def form(self) -> list[object]:
        """Return the JSON that it was sent as, which `parse_where` takes."""
        return [self.column, self.op] if self.op in _NULLS else [*self]


class Term(NamedTuple):
    """A comparison of a column; `matches` judges its decoded value."""

    column: Column
    matches: Matches


def parse_where(value: object) -> tuple[RawTerm, ...]:
    """Check the form of a filter, which is parsed JSON. Raises BadBoundError."""
    if not isinstance(value, list):
        raise BadBoundError(f"where is {clipped(value)}, not a list of comparisons", where=WHERE, fix=_FORM)
    if len(value) > MAX_TERMS:
        raise BadBoundError(f"where has {len(value)} comparisons, above {MAX_TERMS}", where=WHERE, fix="Send fewer")
    try:
        size_bytes = len(orjson.dumps(value))
    except TypeError:
        raise BadBoundError("where is nested too deeply", where=WHERE, fix=_FORM) from None
    if size_bytes > MAX_WHERE_BYTES:
        what = f"where has {size_bytes} bytes, above {MAX_WHERE_BYTES}"
        raise BadBoundError(what, where=WHERE, fix="Send a shorter one")
    return tuple(_raw_term(each) for each in value)


def _raw_term(value: object) -> RawTerm:
    match value:
        case [str(column), str(op)] if op in _NULLS:
            return RawTerm(column, op, None)
        case [str(column), str(op), literal] if op in _COMPARE or op == "in":
            return RawTerm(column, op, literal)
        case [str(column), str(op), *_]:
            takes = "no value" if op in _NULLS else "one value"
            known = op in _NULLS or op in _COMPARE or op == "in"
            what = f"the operator {op} takes {takes}" if known else f"{clipped(op)} is not an operator"
            raise BadBoundError(what, where=f"{WHERE}, the comparison of {clipped(column)}", fix=_FORM)
        case _:
            raise BadBoundError(f"{clipped(value)} is not a comparison", where=WHERE, fix=_FORM)


def compile_where(terms: Sequence[RawTerm], columns: Columns) -> tuple[Term, ...]:
    """Compile a filter for the columns of a store. Raises BadBoundError that names the column."""
    return tuple(_term(each, columns.find(each.column, WHERE)) for each in terms)


def compile_range(column: Column, low: str | None, high: str | None) -> tuple[Term, ...]:
    """Compile the range of a column from `low` to before `high`; None: without that bound. A bound is a text, as in a
    path. Raises BadBoundError.
    """
    order = order_of(column.type)
    if order is None:
        raise BadBoundError(f"values of {column} are not compared", where=FROM, fix="Leave out from and to")
    compared: dict[str, Any] = {
        name: order(_parsed_bound(column, name, bound))
        for name, bound in ((FROM, low), (TO, high))
        if bound is not None
    }
    first, end = compared.get(FROM), compared.get(TO)
    if first is not None and end is not None and first >= end:
        what = f"from={clipped(low)} is not before to={clipped(high)}, which is not in the range"
        raise BadBoundError(what, where=FROM, fix="Send the end of the range as to")
    terms = []
    if FROM in compared:
        terms.append(Term(column, lambda value: value is not None and order(value) >= first))
    if TO in compared:
        terms.append(Term(column, lambda value: value is not None and order(value) < end))
    return tuple(terms)


def compile_window_range(
    start: Column, end: Column, low: str | None, high: str | None, *, is_overlap: bool
) -> tuple[Term, ...]:
    """Compile the range of windows: that of their starts, or of any moment of them, which begin with `start` and end
    before `end`. Raises BadBoundError.
    """
    of_starts = compile_range(start, low, high)
    if not is_overlap:
        return of_starts
    before = compile_range(start, None, high)
    return before if low is None else (*before, _term(RawTerm(".".join(end.path), ">", low), end))


def _parsed_bound(column: Column, name: str, bound: str) -> object:
    if not bound and isinstance(column.type, StringType):
        return bound  # a path has no empty segment, but the empty text is a key
    try:
        return compile_segment_parser(column.type, ".".join(column.path))(bound)
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"{name}, {error.where}", fix=error.fix) from None


def _term(term: RawTerm, column: Column) -> Term:
    if term.op in _NULLS:
        return Term(column, _NULLS[term.op])
    order = order_of(column.type)
    if order is None:
        fix = "Send is_null or not_null, or another column"
        raise BadBoundError(f"values of {column} are not compared", where=WHERE, fix=fix)
    if term.op == "in":
        if not isinstance(term.literal, list) or not term.literal:
            raise _unfit(column, term, "the operator in takes a list of values")
        wanted = {order(_parsed(column, term, each)) for each in term.literal}
        return Term(column, lambda value: value is not None and order(value) in wanted)
    compare, literal = _COMPARE[term.op], order(_parsed(column, term, term.literal))
    return Term(column, lambda value: value is not None and compare(order(value), literal))


def _parsed(column: Column, term: RawTerm, literal: object) -> object:
    """Parse a value as a key's would be."""
    if literal is None:
        raise _unfit(column, term, "null is not compared: send is_null or not_null")
    name = ".".join(column.path)
    try:
        return compile_json_parser(StructType((Field(name, column.type),)), (name,))([literal])[0]
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"{WHERE}, {error.where}", fix=error.fix) from None


def _unfit(column: Column, term: RawTerm, why: str) -> BadBoundError:
    example = example_of(column.type)
    fitting = [term.column, term.op, [example] if term.op == "in" else example]
    fix = f"Send for example {orjson.dumps(fitting).decode()}"
    return BadBoundError(f"the comparison of {column} does not fit: {why}", where=WHERE, fix=fix)


def order_of(spark_type: SparkType) -> Order | None:
    """Return how values of a type are compared; None for a type whose values are not."""
    if not is_scalar(spark_type) or isinstance(spark_type, (VoidType, CalendarIntervalType)):
        return None
    match spark_type:
        case FloatType() | DoubleType():
            return _order_of_float
        case StringType(collation):
            return _order_of_text if collation == BINARY_COLLATION else None
        case BinaryType(opaque_as) if opaque_as:
            return None
        case _:
            return _as_it_is


def _order_of_float(value: float) -> tuple[bool, float]:
    return (True, 0.0) if value != value else (False, value)  # noqa: PLR0124


def _order_of_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _as_it_is(value: object) -> object:
    return value
