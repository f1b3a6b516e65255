"""Arrow record batches of many rows, put together from the cells of their columns (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from understudy_node.bulk.arrow_cells import ArrowColumn, Chunk, arrow_column
from understudy_node.bulk.cells import AnyCells
from understudy_node.bulk.fast_part import PartPiece
from understudy_node.bulk.table import Projection
from understudy_shared.reads.arrow_batches import arrow_schema
from understudy_shared.reads.export_columns import PROBLEM, ExportColumns


class ArrowBatches:
    """The form of Arrow: one record batch for a part. See `fast_part.Form`."""

    def __init__(self, columns: ExportColumns, made: Mapping[tuple[str, ...], ArrowColumn]) -> None:
        self._columns = columns
        self._made = made
        self._schema = arrow_schema(columns, {})

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        chunks = [made.chunk(column) for made, column in zip(self._made.values(), cells, strict=True)]
        return PartPiece(chunks, count, sum(chunk.size_bytes for chunk in chunks))

    def payload(self, pieces: Sequence[PartPiece]) -> tuple[bytes | memoryview, ...]:
        if not pieces:
            return ()
        import pyarrow as pa  # noqa: PLC0415

        columns = zip(*(cast("list[Chunk]", piece.made) for piece in pieces), strict=True)
        arrays = {path: made.array(chunks) for (path, made), chunks in zip(self._made.items(), columns, strict=True)}
        arrays[PROBLEM,] = pa.nulls(sum(piece.rows for piece in pieces), pa.string())
        placed = [
            arrays[field.name,] if (field.name,) in arrays else self._struct(field, arrays) for field in self._schema
        ]
        return (memoryview(pa.record_batch(placed, schema=self._schema).serialize()),)

    def _struct(self, field: Any, arrays: Mapping[tuple[str, ...], Any]) -> Any:
        """Return the array of a part, of those of its columns; of a flat column its own."""
        import pyarrow as pa  # noqa: PLC0415

        if self._columns.is_flat:
            return next(array for path, array in arrays.items() if path[-1] == field.name)
        inner = [array for path, array in arrays.items() if path[0] == field.name]
        return pa.StructArray.from_arrays(inner, fields=list(field.type))


def arrow_batches(table: Projection, columns: ExportColumns) -> ArrowBatches | None:
    """Return the form of a table; None where a column's values have to be made one by one."""
    found: dict[tuple[str, ...], ArrowColumn] = {}
    for each in table.columns:
        made = arrow_column(each.type)
        if made is None:
            return None
        found[each.part, each.name] = made
    return ArrowBatches(columns, found)
