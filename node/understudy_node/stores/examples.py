"""A key that is in a store now, for examples that answer when they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.base import Base, innermost
from understudy_node.engine.scan_order import after_prefix
from understudy_node.engine.view import View
from understudy_node.stores.lookup import StoreReader

MAX_LOOKS = 100
"""Number of records that are looked at in each partition: the first ones may have been deleted since the snapshot."""


def some_key(reader: StoreReader) -> dict[str, object] | None:
    """Return the JSON of an existing key, out of the first partition that shows one at once; None without one."""
    for _, replica in sorted(reader.replicas.items()):
        view = replica.view
        if view is None:
            continue
        first = reader.first_bytes(view)
        stored = None if first is None else _first_key(view.stores[reader.store.store_name], first)
        if stored is not None:
            return reader.store.codec.to_json(reader.key_row(stored))
    return None


def _first_key(view: View, first: bytes) -> bytes | None:
    """Find a key among records of the base and the newest changes, without sorting. Keys begin with `first`."""
    changed = chain.from_iterable(islice(tier.changes, MAX_LOOKS) for tier in view.tiers)
    keys = (key for key in chain(_some_keys(view.base, first), changed) if key.startswith(first))
    return next((key for key in keys if view.get(key) is not None), None)


def _some_keys(base: Base, first: bytes) -> Iterator[bytes]:
    arena = innermost(base)
    if isinstance(arena, ArenaBase):
        return arena.some_keys(MAX_LOOKS)
    return (key for key, _ in islice(base.scan(first, after_prefix(first)) if first else base.scan(), MAX_LOOKS))
