"""The columns of a store whose rows are printed as they are stored: of its keys, and of its values (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from understudy_node.bulk.cells import AnyCells, RowColumns, blocks_of
from understudy_node.stores.scan_rows import RowMaker
from understudy_shared.base.words import StoreKind
from understudy_shared.reads.export_columns import PROBLEM, ExportColumns
from understudy_shared.spark.types import SparkType


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
