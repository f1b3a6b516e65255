"""A key that is in a store now, for examples that answer when they are tried."""

from __future__ import annotations

from itertools import chain, islice

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
    changed = (key for tier in view.tiers for key in islice(tier.changes, MAX_LOOKS) if key.startswith(first))
    scan = view.base.scan(first, after_prefix(first)) if first else view.base.scan()
    base = (key for key, _ in islice(scan, MAX_LOOKS))
    return next((key for key in chain(base, changed) if view.get(key) is not None), None)
