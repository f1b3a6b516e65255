"""The order of the rows of a scan: what each row is ordered by (pure).

A rank is the bytes of the columns, then those with which the key is stored: no two rows have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from understudy_shared.questions.scan.ordering import OrderBytes, compile_order
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import Column, Columns, walk, walk_row
from understudy_shared.spark.key_codec import Row

KEY: Final = "key"
"""The order by all key columns."""

Parse = Callable[[object], object]


class RowOrder(NamedTuple):
    """An order: `of_key` by columns of the key, else `of_member` by a column of the printed value or result. `parse` is
    the parser of its printed values.
    """

    of_key: tuple[tuple[Column, OrderBytes], ...]
    of_member: tuple[Column, OrderBytes, Parse] | None
    is_reversed: bool

    def key_bytes(self, row: Row) -> bytes | None:
        """Return the bytes by which a key is ordered; None where it is ordered by something else."""
        if self.of_member is not None:
            return None
        return b"".join([order(walk_row(row, column.indexes)) for column, order in self.of_key])

    def member_bytes(self, printed: Mapping[str, Any]) -> bytes:
        """Return the bytes by which the printed members of a row are ordered. A row that cannot be read has none of
        them, and is ordered as null.
        """
        assert self.of_member is not None, "used only where a member orders"
        column, order, parse = self.of_member
        value = walk(printed.get(column.part) or {}, column.path)
        return order(None if value is None else parse(value))


def row_order(
    name: str,
    columns: Columns,
    key_columns: tuple[Column, ...],
    parser: Callable[[Column], Parse],
    *,
    is_reversed: bool,
) -> RowOrder:
    """Compile an order by its name. Raises BadBoundError that names the column."""
    wanted = key_columns if name == KEY and not columns.has(KEY) else (columns.find(name, "order"),)
    orders = [compile_order(column.type) for column in wanted]
    known = [(column, order) for column, order in zip(wanted, orders, strict=True) if order is not None]
    if len(known) < len(wanted):
        unfit = next(column for column, order in zip(wanted, orders, strict=True) if order is None)
        raise BadBoundError(f"values of {unfit} have no order here", where="order", fix="Order by another column")
    members = [(column, order, parser(column)) for column, order in known if column.part != "key"]
    return RowOrder(() if members else tuple(known), members[0] if members else None, is_reversed)
