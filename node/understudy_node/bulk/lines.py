"""Lines of NDJSON, and of CSV, of many rows, put together from the cells of their columns (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import cast

import orjson

from understudy_node.bulk.cells import AnyCells, UnfitRowsError
from understudy_node.bulk.csv_cells import field_printer
from understudy_node.bulk.fast_part import PartPiece
from understudy_node.bulk.json_cells import cell_printer
from understudy_node.bulk.table import Projection
from understudy_shared.reads.scan_hop import MAX_ROW_BYTES


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
