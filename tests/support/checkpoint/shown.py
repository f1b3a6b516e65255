"""Versions of a task made of plain records, for the finders of the kinds of state."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_node.engine.base import NO_FAMILIES, EmptyBase
from understudy_node.engine.view import View
from understudy_node.replica.task_view import TaskView

Records = Mapping[bytes, bytes | None]


def shown(
    records: Records | None = None,
    *,
    next_watermark_ms: int | None = None,
    families: Mapping[str, int] = NO_FAMILIES,
    **stores: Records,
) -> TaskView:
    """The first version of a task: its default store, or its stores by name with `__` for `-`; `families` of each."""
    given = stores if records is None else {"default": records, **stores}
    base = EmptyBase()
    base.families = families
    views = {name.replace("__", "-"): View.of(base, 0).with_changes(dict(each), 1) for name, each in given.items()}
    return TaskView(1, views, None, None, next_watermark_ms, frozenset(), b"", b"")
