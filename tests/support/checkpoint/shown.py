"""Versions of a task made of plain records, for the finders of the kinds of state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any

from understudy_node.engine.base import NO_FAMILIES, EmptyBase
from understudy_node.engine.view import StateView
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import Finder, PlaceSealer
from understudy_shared.reads.bounds import FIRST_PLACE, Selection
from understudy_shared.reads.tokens import PageCursor, decode_cursor

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
    views = {name.replace("__", "-"): StateView.of(base, 0).with_changes(dict(each), 1) for name, each in given.items()}
    return TaskView(1, views, None, None, next_watermark_ms, frozenset(), b"", b"")


def pages_of(
    finder: Finder,
    view: TaskView,
    stored: bytes,
    limit: int,
    *,
    member: str,
    include_expired: bool = True,
    processes: int = 1,
) -> Iterator[list[dict[str, Any]]]:
    """The pages of a key's list, each asked for with the cursor of the one before; of some processes in turn."""
    issuers = cycle([PlaceSealer(b"%d" % number) for number in range(processes)])
    before: PageCursor | None = None
    while True:
        issuer = next(issuers)
        place = FIRST_PLACE if before is None else issuer.of(before)
        found = finder.find(view, stored, Selection(limit, before, include_expired, place))
        assert found is not None
        assert found.is_page
        yield json.loads(b"{" + found.members.removesuffix(b",") + b"}")[member]
        if found.next is None:
            return
        cursor = PageCursor("store", "lineage", "", view.version, None, found.next)
        before = decode_cursor(issuer.put(cursor, found.place, beside=before).encode())
