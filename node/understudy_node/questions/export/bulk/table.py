"""The columns of a store whose rows are printed as they are stored: of its keys, and of its values (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from understudy_node.questions.export.bulk.cells import I64, U8, AnyCells, RowColumns, VariableCells, blocks_of
from understudy_node.questions.scan.rows import RowMaker
from understudy_shared.base.words import StoreKind
from understudy_shared.questions.export.columns import PROBLEM, ExportColumns
from understudy_shared.spark.types import SparkType

SHORT_BYTES: Final = 32
"""Mean size up to which NumPy gathers texts byte by byte. Its index takes sixteen bytes for each."""


def joined(cells: VariableCells, *, before: int = 0, behind: int = 0, fill: int = 0) -> tuple[U8, I64]:
    """Return the bytes of all cells in a row, with room around each that is filled with `fill`, and where each begins,
    its room before included.
    """
    sizes = cells.sizes
    count, total = len(sizes), int(sizes.sum())
    out = _even(cells, before, behind, fill) if count else None
    if out is None:
        is_short = total <= SHORT_BYTES * count
        out = _gathered(cells, before, behind, fill) if is_short else _concatenated(cells, before, behind, fill)
    takes = sizes + (before + behind)
    return out, np.cumsum(takes) - takes


def _even(cells: VariableCells, before: int, behind: int, fill: int) -> U8 | None:
    """Join cells of one size at equal distances, such as identifiers; None for others."""
    sizes, starts = cells.sizes, cells.starts
    count, size = len(sizes), int(sizes[0])
    distances = np.diff(starts)
    if bool((sizes != size).any()) or (count > 1 and bool((distances != distances[0]).any())):
        return None
    strides = (int(distances[0]) if count > 1 else 0, 1)
    out = np.full((count, before + size + behind), fill, np.uint8)
    out[:, before : before + size] = np.ndarray((count, size), np.uint8, cells.data.data, int(starts[0]), strides)
    return out.reshape(-1)


def _gathered(cells: VariableCells, before: int, behind: int, fill: int) -> U8:
    sizes, room = cells.sizes, before + behind
    count, total = len(sizes), int(sizes.sum())
    places = np.arange(total)
    begins = np.cumsum(sizes) - sizes
    chars = cells.data[np.repeat(cells.starts - begins, sizes) + places]
    if not room:
        return chars
    out = np.full(total + room * count, fill, np.uint8)
    out[np.repeat(np.arange(count) * room + before, sizes) + places] = chars
    return out


def _concatenated(cells: VariableCells, before: int, behind: int, fill: int) -> U8:
    filling = bytes([fill])
    between = (filling * (behind + before)).join(cells.pieces())
    return np.frombuffer(bytearray(b"%b%b%b" % (filling * before, between, filling * behind)), np.uint8)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a row. `name` is that in its part, `index` its place in the stored row."""

    part: Literal["key", "value"]
    name: str
    index: int
    type: SparkType


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a question wants of a store. `skip` is the size of the provider's prefix of a row."""

    columns: tuple[TableColumn, ...]
    has_value: bool
    """Whether a row has the member `value`, with however many columns."""
    skip: int
    keys: RowColumns
    values: RowColumns | None
    """None where values are not looked at: those of a set say nothing."""

    def cells(self, records: Sequence[bytes]) -> list[AnyCells]:
        """Return the columns of a flat list of records. Raises UnfitRowsError where they have to be read row by row."""
        keys, values = blocks_of(records, self.skip)
        found: list[AnyCells] = []
        for part, reader, rows in (("key", self.keys, keys), ("value", self.values, values)):
            if reader is not None:
                bits = reader.check(rows)
                found += [reader.cells(rows, bits, each.index) for each in self.columns if each.part == part]
        return found


def table_of(maker: RowMaker, columns: ExportColumns) -> Projection | None:
    """Return the columns of a question; None where rows are not printed as they are stored, or some are left out."""
    reader, store = maker.reader, maker.reader.store
    is_stored = all(each.path[0] in {"key", "value", PROBLEM} for each in columns.columns)
    if store.make_finder is not None or maker.is_filtered or maker.only_counts or not is_stored:
        return None
    wanted = {each.path for each in columns.columns}
    has_value = store.kind is StoreKind.VALUE and (maker.fields is None or "value" in maker.fields)
    keys = zip(store.codec.names, store.codec.key.fields, strict=True)
    values = zip(store.value_names, store.value_schema.fields, strict=True)
    found = [TableColumn("key", name, at, each.type) for at, (name, each) in enumerate(keys)]
    if store.kind is StoreKind.VALUE:
        found += [TableColumn("value", name, at, each.type) for at, (name, each) in enumerate(values)]
    chosen = tuple(each for each in found if (each.part, each.name) in wanted)
    stored = RowColumns(store.value_schema) if store.kind is StoreKind.VALUE else None
    return Projection(chosen, has_value, len(reader.row_prefix), RowColumns(store.codec.key), stored)
