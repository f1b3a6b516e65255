"""Lines of NDJSON, and of CSV, of many rows, put together from the cells of their columns (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, cast

import numpy as np
import orjson

from understudy_node.questions.export.bulk.cells import (
    AnyCells,
    FixedCells,
    UnfitRowsError,
    VariableCells,
    is_text,
    printed,
)
from understudy_node.questions.export.bulk.fast_part import PartPiece
from understudy_node.questions.export.bulk.json_cells import cell_printer
from understudy_node.questions.export.bulk.table import Projection, joined
from understudy_shared.http.lookup_requests import numbers_as_text
from understudy_shared.questions.scan.hop import MAX_ROW_BYTES
from understudy_shared.reads.export_format import csv_field
from understudy_shared.spark.json_printer import compile_json_cell
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

PrintFields = Callable[[AnyCells], list[bytes]]
"""A function from a column's cells to the field of each."""

_NEWLINE: Final = 0x0A
_SPECIAL: Final = np.frombuffer(b',"\n\r', np.uint8)
_AT_EDGE: Final = np.frombuffer(b" \t#", np.uint8)
"""Bytes for which a field is quoted: wherever they are, and at its ends; `#` begins a comment."""


def field_printer(spark_type: SparkType, *, is_first: bool, longs_as_text: bool = False) -> PrintFields:
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


def _strings(cells: VariableCells, *, one_by_one: PrintFields) -> list[bytes]:
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


def _one_by_one(spark_type: SparkType, *, is_first: bool, longs_as_text: bool) -> PrintFields:
    print_cell = compile_json_cell(spark_type)

    def print_fields(cells: AnyCells) -> list[bytes]:
        values: list[Any] = printed(print_cell, cells)
        if longs_as_text:
            values = [numbers_as_text(each) for each in values]
        return [csv_field(each, is_first=is_first) for each in values]

    return print_fields


class NdjsonForm:
    """The form of NDJSON: each line has a row of a scan. See `fast_part.Form`."""

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

    def payload(self, pieces: Sequence[PartPiece]) -> tuple[bytes | memoryview, ...]:
        return tuple(cast(bytes, piece.made) for piece in pieces)


class CsvLines:
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

    def payload(self, pieces: Sequence[PartPiece]) -> tuple[bytes | memoryview, ...]:
        return tuple(cast(bytes, piece.made) for piece in pieces)


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
