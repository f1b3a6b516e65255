"""The filter that is applied to rows before DuckDB gets them, with DuckDB's meaning. It imports pyarrow.

DuckDB does not apply a filter again that it has handed to a source, so this has to be exact. What pyarrow is given is
exact but for numbers that may be NaN: to DuckDB (and Spark) NaN is the greatest number, to Arrow it compares with
nothing. Filters of such columns are written anew.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from understudy.sql.predicates import (
    Check,
    Combined,
    Comparison,
    Not,
    OneOf,
    Path,
    Predicate,
    Unknown,
    UnreadFilterError,
)
from understudy.sql.predicates import paths as paths_of
from understudy.sql.substrait import read_filter

_COMPARE = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


class Filter:
    """A filter of a table: as a tree, if it is understood, and as the expression to apply."""

    def __init__(self, given: pc.Expression, schema: pa.Schema) -> None:
        """Read what DuckDB sent. Raises UnreadFilterError for a filter that cannot be applied exactly."""
        readable = pa.schema([each for each in schema if _has_substrait(each.type)])
        self.names: list[str] = readable.names
        self.predicate: Predicate
        self.columns: list[str]
        try:
            self.predicate = read_filter(bytes(given.to_substrait(readable)))
            paths = paths_of(self.predicate)
        except (pa.ArrowException, UnreadFilterError) as error:
            if any(_has_floats(each.type) for each in schema):
                raise UnreadFilterError(f"a filter cannot be applied exactly: {error}") from None
            self.predicate, self.columns, self.expression = Unknown("a filter"), schema.names, given
            return
        self.columns = sorted({self.names[path[0]] for path in paths})
        has_floats = any(pa.types.is_floating(_leaf(readable, path)[1]) for path in paths)
        self.expression = _rewritten(self.predicate, readable) if has_floats else given


@cache
def _has_substrait(arrow_type: pa.DataType) -> bool:
    """Whether Substrait has a name for a type: a schema with another one cannot be written."""
    try:
        pc.field("x").is_valid().to_substrait(pa.schema([("x", arrow_type)]))
    except pa.ArrowException:
        return False
    return True


def _has_floats(arrow_type: pa.DataType) -> bool:
    if pa.types.is_struct(arrow_type):
        return any(_has_floats(each.type) for each in arrow_type)
    return bool(pa.types.is_floating(arrow_type))


def _leaf(schema: pa.Schema, path: Path) -> tuple[tuple[str, ...], pa.DataType]:
    """Return the names of a column, or of a field of one, and its type."""
    field = schema.field(path[0])
    names = [field.name]
    for index in path[1:]:
        field = field.type.field(index)
        names.append(field.name)
    return tuple(names), field.type


def _rewritten(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """Return a filter as an expression in which NaN is the greatest number, and equal to itself."""
    match predicate:
        case Combined(op, parts):
            return reduce(and_ if op == "and" else or_, [_rewritten(each, schema) for each in parts])
        case Not(of):
            return ~_rewritten(of, schema)
        case Comparison(path, op, literal):
            return _compared(*_leaf(schema, path), op, literal)
        case OneOf(path, literals, keeps_null):
            names, arrow_type = _leaf(schema, path)
            field = pc.field(*names)
            found = reduce(or_, [_compared(names, arrow_type, "=", each) for each in literals])
            return found if keeps_null else pc.if_else(field.is_valid(), found, pa.scalar(False))
        case Check(path, what):
            field = pc.field(*_leaf(schema, path)[0])
            tests = {"is_null": field.is_null, "not_null": field.is_valid, "is_nan": lambda: pc.is_nan(field)}
            return tests[what]()
        case Unknown(what):
            raise UnreadFilterError(f"a filter cannot be applied exactly: {what}")


def _compared(names: tuple[str, ...], arrow_type: pa.DataType, op: str, literal: Any) -> pc.Expression:
    """Return a comparison; null where the column is null."""
    field = pc.field(*names)
    if not pa.types.is_floating(arrow_type):
        return _COMPARE[op](field, pa.scalar(literal, arrow_type))
    if literal != literal:  # noqa: PLR0124
        raise UnreadFilterError("a filter cannot be applied exactly: a comparison with NaN")
    compared = _COMPARE[op](field, pa.scalar(literal, arrow_type))
    return compared | pc.is_nan(field) if op in (">", ">=") else compared
