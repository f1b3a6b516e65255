"""The JSON of a column's cells, as `orjson` prints what `json_printer` makes of each: a list of bytes (pure).

The frequent types are printed many at once; the others value by value, by the printer itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from understudy_node.questions.export.bulk.cells import (
    U8,
    AnyCells,
    FixedCells,
    VariableCells,
    is_text,
    printed,
    values_of,
)
from understudy_node.questions.export.bulk.table import joined
from understudy_shared.http.lookup_requests import numbers_as_text
from understudy_shared.spark.json_printer import compile_json_cell
from understudy_shared.spark.temporal import MICROS_PER_DAY, date_text
from understudy_shared.spark.types import (
    BooleanType,
    DateType,
    DoubleType,
    IntegralType,
    SparkType,
    StringType,
    TimestampNtzType,
    TimestampType,
    VoidType,
)

PrintCells = Callable[[AnyCells], list[bytes]]
"""A function from a column's cells to the JSON of each."""

NULL: Final = b"null"
_QUOTE, _BACKSLASH, _NEWLINE, _FIRST_PRINTABLE = 0x22, 0x5C, 0x0A, 0x20


def cell_printer(spark_type: SparkType, *, longs_as_text: bool = False, label: bytes = b"") -> PrintCells:
    """Return the printer of a column. It raises UnfitRowsError for cells that are not of their type. Each text begins
    with `label`, which has no line break.
    """
    match spark_type:
        case VoidType():
            return lambda cells: [label + NULL] * len(_fixed(cells).values)
        case IntegralType() if not longs_as_text:
            return _with_nulls(partial(_numbers, label=label), label)
        case DoubleType():
            return _with_nulls(partial(_doubles, label=label), label)
        case StringType():
            return _with_nulls(partial(_strings, label=label), label)
    print_cells = _unlabelled(spark_type, longs_as_text=longs_as_text)
    return _with_nulls((lambda cells: [label + text for text in print_cells(cells)]) if label else print_cells, label)


def _unlabelled(spark_type: SparkType, *, longs_as_text: bool) -> Callable[[Any], list[bytes]]:
    match spark_type:
        case IntegralType():
            return _long_texts
        case BooleanType():
            return _booleans
        case DateType():
            return _dates
        case TimestampType():
            return partial(_timestamps, zone=b'Z"')
        case TimestampNtzType():
            return partial(_timestamps, zone=b'"')
        case _:
            return partial(_one_by_one, compile_json_cell(spark_type), longs_as_text=longs_as_text)


def _with_nulls(print_cells: Callable[[Any], list[bytes]], label: bytes) -> PrintCells:
    def printed(cells: AnyCells) -> list[bytes]:
        texts = print_cells(cells)
        if cells.nulls is not None:
            for at in np.flatnonzero(cells.nulls).tolist():
                texts[at] = label + NULL
        return texts

    return printed


def _fixed(cells: AnyCells) -> FixedCells:
    assert isinstance(cells, FixedCells), "what is in slots"
    return cells


def _numbers(cells: FixedCells, *, label: bytes = b"") -> list[bytes]:
    array = orjson.dumps(np.ascontiguousarray(cells.values), option=orjson.OPT_SERIALIZE_NUMPY)
    return _split(array[1:-1], b",", label)


def _split(texts: bytes, between: bytes, label: bytes) -> list[bytes]:
    """Return texts that `between` stands between, each behind the label: put there before they are texts of their own,
    which is faster.
    """
    return (label + texts.replace(between, b"\n" + label)).split(b"\n") if label else texts.split(between)


def _long_texts(cells: FixedCells) -> list[bytes]:
    return [b'"%b"' % text for text in _numbers(cells)]


def _booleans(cells: FixedCells) -> list[bytes]:
    return [b"true" if each else b"false" for each in cells.values.tolist()]


def _doubles(cells: FixedCells, *, label: bytes = b"") -> list[bytes]:
    finite = np.isfinite(cells.values)
    if bool(finite.all()):
        return _numbers(cells, label=label)
    texts = _numbers(FixedCells(np.where(finite, cells.values, 0.0), None), label=label)
    for at in np.flatnonzero(~finite).tolist():
        value = cells.values[at]
        texts[at] = label + (b'"NaN"' if np.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"')
    return texts


def _dates(cells: FixedCells) -> list[bytes]:
    days = values_of(cells)
    unique, inverse = np.unique(days, return_inverse=True)
    texts = [b'"%b"' % date_text(day).encode() for day in unique.tolist()]
    return [texts[at] for at in inverse.tolist()]


def _timestamps(cells: FixedCells, *, zone: bytes) -> list[bytes]:
    """Print timestamps: the dates, of which there are few, one by one, and the digits of the times at once."""
    days, micros = np.divmod(values_of(cells), MICROS_PER_DAY)
    unique, inverse = np.unique(days, return_inverse=True)
    dates = [date_text(day).encode() for day in unique.tolist()]
    seconds, fraction = np.divmod(micros, 1_000_000)
    minutes, second = np.divmod(seconds, 60)
    hour, minute = np.divmod(minutes, 60)
    template = b"T00:00:00.000000%b" % zone
    times = np.tile(np.frombuffer(template, np.uint8), (len(days), 1))
    for at, width, values in ((1, 2, hour), (4, 2, minute), (7, 2, second), (10, 6, fraction)):
        _write_digits(times, at, width, values)
    texts = times.reshape(-1).view(f"S{len(template)}").tolist()
    return [b'"%b%b' % (dates[day], text) for day, text in zip(inverse.tolist(), texts, strict=True)]


def _write_digits(out: U8, at: int, width: int, values: npt.NDArray[Any]) -> None:
    """Write numbers with leading zeros into columns of `out`."""
    rest = values.astype(np.int32)
    for column in range(at + width - 1, at - 1, -1):
        rest, digit = np.divmod(rest, 10)
        out[:, column] = digit + ord("0")


def _strings(cells: VariableCells, *, label: bytes = b"") -> list[bytes]:
    """Print strings that need no escapes as they are, in quotes; others one by one."""
    out, begins = joined(cells, before=1, behind=2, fill=_QUOTE)
    ends = begins + cells.sizes + 2
    out[ends] = _NEWLINE
    # Where a quote, a backslash or a control character is in a string, there are more of them than strings have.
    special = np.count_nonzero((out < _FIRST_PRINTABLE) | (out == _QUOTE) | (out == _BACKSLASH))
    if special == 3 * len(ends) and is_text(out):
        return _split(out[:-1].tobytes(), b"\n", label)
    return [label + text for text in _one_by_one(compile_json_cell(StringType()), cells)]


def _one_by_one(print_cell: Callable[[Any], object], cells: AnyCells, *, longs_as_text: bool = False) -> list[bytes]:
    values = printed(print_cell, cells)
    if longs_as_text:
        values = [numbers_as_text(each) for each in values]
    return [orjson.dumps(each) for each in values]
