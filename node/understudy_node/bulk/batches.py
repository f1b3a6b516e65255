"""Arrow record batches of many rows, put together from the cells of their columns (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from understudy_node.bulk.arrow_cells import MakeArray, arrow_maker
from understudy_node.bulk.cells import AnyCells
from understudy_node.bulk.fast_part import PartPiece
from understudy_node.bulk.table import Projection
from understudy_node.stores.arrow_schema import batch_message
from understudy_shared.reads.arrow_batches import arrow_schema
from understudy_shared.reads.export_columns import PROBLEM, ExportColumns


class ArrowBatches:
    """The form of Arrow: one record batch for a part. See `fast_part.Form`."""

    def __init__(self, columns: ExportColumns, makers: Mapping[tuple[str, ...], MakeArray]) -> None:
        self._columns = columns
        self._makers = makers
        self._schema = arrow_schema(columns, {})

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        arrays = [make(column) for make, column in zip(self._makers.values(), cells, strict=True)]
        return PartPiece(arrays, count, sum(array.nbytes for array in arrays))

    def payload(self, pieces: Sequence[PartPiece]) -> bytes:
        if not pieces:
            return b""
        import pyarrow as pa  # noqa: PLC0415

        columns = zip(*(cast("list[Any]", piece.made) for piece in pieces), strict=True)
        arrays = dict(zip(self._makers, map(pa.concat_arrays, columns), strict=True))
        arrays[PROBLEM,] = pa.nulls(sum(piece.rows for piece in pieces), pa.string())
        placed = [
            arrays[field.name,] if (field.name,) in arrays else self._struct(field, arrays) for field in self._schema
        ]
        return batch_message(pa.record_batch(placed, schema=self._schema))

    def _struct(self, field: Any, arrays: Mapping[tuple[str, ...], Any]) -> Any:
        """Return the array of a part, of those of its columns; of a flat column its own."""
        import pyarrow as pa  # noqa: PLC0415

        if self._columns.is_flat:
            return next(array for path, array in arrays.items() if path[-1] == field.name)
        inner = [array for path, array in arrays.items() if path[0] == field.name]
        return pa.StructArray.from_arrays(inner, fields=list(field.type))


def arrow_batches(table: Projection, columns: ExportColumns) -> ArrowBatches | None:
    """Return the form of a table; None where a column's values have to be made one by one."""
    makers: dict[tuple[str, ...], MakeArray] = {}
    for each in table.columns:
        make = arrow_maker(each.type)
        if make is None:
            return None
        makers[each.part, each.name] = make
    return ArrowBatches(columns, makers)
