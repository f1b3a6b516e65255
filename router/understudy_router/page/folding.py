"""Rows of the grid that show the same, as one row: store partitions that are well and lie on the same nodes (pure).

A partition that is not well keeps a row of its own, so that it stands out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from understudy_router.page.cells import Row, kind_of
from understudy_router.page.words import number

FOLDS_ABOVE = 50
"""Most rows that are not folded, because a reader can read them one by one."""

NAMED = 3
"""Most partitions that a row names."""

_WORST = ("lag", "lag_ms", "age_ms")


def folded(rows: Sequence[Row]) -> list[Row]:
    """Fold the rows. Each has its `label`, and the worst values of the rows that it stands for."""
    if len(rows) <= FOLDS_ABOVE:
        return [{**row, "label": str(row["partition"])} for row in rows]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_likeness(row), []).append(row)
    return [_as_one(group) for group in groups.values()]


def _likeness(row: Row) -> tuple[Any, ...]:
    """Return the part of a row that is equal in all rows that fold into one."""
    cells: Mapping[str, Any] = row["cells"]
    is_well = bool(cells) and all(kind_of(cell) == "running" for cell in cells.values())
    if not is_well:
        return (row["store"], row["partition"])
    return (row["store"], *sorted((node_id, cell["role"]) for node_id, cell in cells.items()))


def _as_one(group: Sequence[Row]) -> Row:
    first = group[0]
    cells = {
        node_id: {**cell, **{name: _most([row["cells"][node_id][name] for row in group]) for name in _WORST}}
        for node_id, cell in first["cells"].items()
    }
    return {**first, "cells": cells, "label": _label([row["partition"] for row in group])}


def _most(values: Sequence[float | None]) -> float | None:
    return None if None in values else max(value for value in values if value is not None)


def _label(partitions: Sequence[int]) -> str:
    """Return the first partitions, and how many more there are."""
    more = len(partitions) - NAMED
    return ", ".join(map(str, partitions[:NAMED])) + (f" and {number(more)} more" if more > 0 else "")
