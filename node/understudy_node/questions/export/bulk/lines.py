"""Lines of NDJSON, and of CSV, of many rows, put together from the cells of their columns (pure).

The cells are printed as `orjson` prints what `json_printer` makes of each: those of frequent types many at once, the
others value by value, by the printer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from understudy_node.questions.export.bulk.part import (
    U8,
    AnyCells,
    FixedCells,
    Form,
    PartPiece,
    Projection,
    UnfitRowsError,
    VariableCells,
    is_text,
    joined,
    printed,
    values_of,
)
from understudy_shared.http.lookup_requests import numbers_as_text
from understudy_shared.questions.scan.hop import MAX_ROW_BYTES
from understudy_shared.reads.export_format import csv_field
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
"""A function from a column's cells to the JSON, or the field of CSV, of each."""

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
            return _labelled_nulls(partial(_json_numbers, label=label), label)
        case DoubleType():
            return _labelled_nulls(partial(_json_doubles, label=label), label)
        case StringType():
            return _labelled_nulls(partial(_json_strings, label=label), label)
    print_cells = _unlabelled(spark_type, longs_as_text=longs_as_text)
    return _labelled_nulls(
        (lambda cells: [label + text for text in print_cells(cells)]) if label else print_cells, label
    )


def _unlabelled(spark_type: SparkType, *, longs_as_text: bool) -> Callable[[Any], list[bytes]]:
    match spark_type:
        case IntegralType():
            return _long_texts
        case BooleanType():
            return _json_booleans
        case DateType():
            return _dates
        case TimestampType():
            return partial(_timestamps, zone=b'Z"')
        case TimestampNtzType():
            return partial(_timestamps, zone=b'"')
        case _:
            return partial(_json_one_by_one, compile_json_cell(spark_type), longs_as_text=longs_as_text)


def _labelled_nulls(print_cells: Callable[[Any], list[bytes]], label: bytes) -> PrintCells:
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


def _json_numbers(cells: FixedCells, *, label: bytes = b"") -> list[bytes]:
    array = orjson.dumps(np.ascontiguousarray(cells.values), option=orjson.OPT_SERIALIZE_NUMPY)
    return _split(array[1:-1], b",", label)


def _split(texts: bytes, between: bytes, label: bytes) -> list[bytes]:
    """Return texts that `between` stands between, each behind the label: put there before they are texts of their own,
    which is faster.
    """
    return (label + texts.replace(between, b"\n" + label)).split(b"\n") if label else texts.split(between)


def _long_texts(cells: FixedCells) -> list[bytes]:
    return [b'"%b"' % text for text in _json_numbers(cells)]


def _json_booleans(cells: FixedCells) -> list[bytes]:
    return [b"true" if each else b"false" for each in cells.values.tolist()]


def _json_doubles(cells: FixedCells, *, label: bytes = b"") -> list[bytes]:
    finite = np.isfinite(cells.values)
    if bool(finite.all()):
        return _json_numbers(cells, label=label)
    texts = _json_numbers(FixedCells(np.where(finite, cells.values, 0.0), None), label=label)
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
    rest = values.astype(np.int32)
    for column in range(at + width - 1, at - 1, -1):
        rest, digit = np.divmod(rest, 10)
        out[:, column] = digit + ord("0")


def _json_strings(cells: VariableCells, *, label: bytes = b"") -> list[bytes]:
    """Print strings that need no escapes as they are, in quotes; others one by one."""
    out, begins = joined(cells, before=1, behind=2, fill=_QUOTE)
    ends = begins + cells.sizes + 2
    out[ends] = _NEWLINE
    # Where a quote, a backslash or a control character is in a string, there are more of them than strings have.
    special = np.count_nonzero((out < _FIRST_PRINTABLE) | (out == _QUOTE) | (out == _BACKSLASH))
    if special == 3 * len(ends) and is_text(out):
        return _split(out[:-1].tobytes(), b"\n", label)
    return [label + text for text in _json_one_by_one(compile_json_cell(StringType()), cells)]


def _json_one_by_one(
    print_cell: Callable[[Any], object], cells: AnyCells, *, longs_as_text: bool = False
) -> list[bytes]:
    values = printed(print_cell, cells)
    if longs_as_text:
        values = [numbers_as_text(each) for each in values]
    return [orjson.dumps(each) for each in values]


_SPECIAL: Final = np.frombuffer(b',"\n\r', np.uint8)
_AT_EDGE: Final = np.frombuffer(b" \t#", np.uint8)
"""Bytes for which a field is quoted: wherever they are, and at its ends; `#` begins a comment."""


def field_printer(spark_type: SparkType, *, is_first: bool, longs_as_text: bool = False) -> PrintCells:
    """Return the printer of a column; `is_first`: of the first one. It raises UnfitRowsError for cells that are not of
    their type.
    """
    match spark_type:
        case VoidType() | IntegralType() | BooleanType():
            return partial(_plain, cell_printer(spark_type))
        case DoubleType():
            return partial(_doubles, cell_printer(spark_type))
        case DateType() | TimestampType() | TimestampNtzType():
            return partial(_unquoted, cell_printer(spark_type))
        case StringType():
            return partial(_strings, one_by_one=_one_by_one(spark_type, is_first=is_first, longs_as_text=False))
        case _:
            return _one_by_one(spark_type, is_first=is_first, longs_as_text=longs_as_text)


def _plain(print_cells: Callable[[AnyCells], list[bytes]], cells: AnyCells) -> list[bytes]:
    """Return JSON without quotes as fields."""
    return _with_nulls(print_cells(cells), cells)


def _doubles(print_cells: Callable[[AnyCells], list[bytes]], cells: AnyCells) -> list[bytes]:
    assert isinstance(cells, FixedCells), "what is in slots"
    return _plain(print_cells, cells) if bool(np.isfinite(cells.values).all()) else _unquoted(print_cells, cells)


def _unquoted(print_cells: Callable[[AnyCells], list[bytes]], cells: AnyCells) -> list[bytes]:
    """Return JSON of numbers and plain texts as fields."""
    return _with_nulls([text.strip(b'"') for text in print_cells(cells)], cells)


def _with_nulls(texts: list[bytes], cells: AnyCells) -> list[bytes]:
    if cells.nulls is not None:
        for at in np.flatnonzero(cells.nulls).tolist():
            texts[at] = b""
    return texts


def _strings(cells: VariableCells, *, one_by_one: PrintCells) -> list[bytes]:
    """Print strings as they are where not one of them is to be quoted."""
    is_empty = cells.sizes == 0 if cells.nulls is None else (cells.sizes == 0) & ~cells.nulls
    out, begins = joined(cells, behind=1, fill=_NEWLINE)
    ends = begins + cells.sizes
    filled = cells.sizes > 0
    edges = np.concatenate((out[begins[filled]], out[ends[filled] - 1]))
    special = int(np.isin(out, _SPECIAL).sum()) - len(ends)
    if special or bool(is_empty.any()) or bool(np.isin(edges, _AT_EDGE).any()) or not is_text(out):
        return one_by_one(cells)
    texts = out.tobytes().split(b"\n")
    texts.pop()
    return texts


def _one_by_one(spark_type: SparkType, *, is_first: bool, longs_as_text: bool) -> PrintCells:
    print_cell = compile_json_cell(spark_type)

    def print_fields(cells: AnyCells) -> list[bytes]:
        values: list[Any] = printed(print_cell, cells)
        if longs_as_text:
            values = [numbers_as_text(each) for each in values]
        return [csv_field(each, is_first=is_first) for each in values]

    return print_fields


class NdjsonForm(Form):
    """The form of NDJSON: each line has a row of a scan."""

    def __init__(self, table: Projection, *, longs_as_text: bool = False) -> None:
        *labels, self._end = _between(table)
        self._printers = [
            cell_printer(each.type, longs_as_text=longs_as_text, label=label)
            for each, label in zip(table.columns, labels, strict=True)
        ]

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        columns = [print_cells(column) for print_cells, column in zip(self._printers, cells, strict=True)]
        lines = b"".join(chain.from_iterable(zip(*columns, repeat(self._end, count), strict=True)))
        if len(lines) > MAX_ROW_BYTES:
            raise UnfitRowsError  # a row may be too long, which only the row says
        return PartPiece(lines, count, len(lines))


class CsvLines(Form):
    """The form of CSV: a field for each column, and an empty one for the problem that no row has."""

    def __init__(self, table: Projection, *, longs_as_text: bool = False) -> None:
        self._printers = [
            field_printer(each.type, is_first=not at, longs_as_text=longs_as_text)
            for at, each in enumerate(table.columns)
        ]

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        columns: list[Iterable[bytes]] = []
        for print_fields, column in zip(self._printers, cells, strict=True):
            columns += [print_fields(column), repeat(b",", count)]
        lines = b"".join(chain.from_iterable(zip(*columns, repeat(b"\n", count), strict=True)))
        if len(lines) > MAX_ROW_BYTES:
            raise UnfitRowsError
        return PartPiece(lines, count, len(lines))


def _between(table: Projection) -> list[bytes]:
    """Return what a line has before its first cell, between two cells, and behind its last."""
    between = [b'{"row":{"key":{']
    part = "key"
    is_first = True
    for column in table.columns:
        if column.part != part:
            between[-1] += b'},"value":{'
            part, is_first = column.part, True
        between[-1] += b"%b%b:" % (b"" if is_first else b",", orjson.dumps(column.name))
        between.append(b"")
        is_first = False
    if part == "key" and table.has_value:
        between[-1] += b'},"value":{'
    between[-1] += b"}}}\n"
    return between
