"""An estimate of the number of keys of a partition, from what its base counts and a sample of the changes since (pure).

Changes that were moved to disk are left out. A store whose records are not its keys one to one has no estimate.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Final

from understudy_node.engine.view import View
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import StoreKind
from understudy_shared.reads.bounds import BadBoundError

SAMPLED: Final = 256
"""Number of changed keys that are looked up."""


def estimate_keys(reader: StoreReader, view: TaskView) -> int:
    """Estimate the number of keys. Raises BadBoundError for a store that has no estimate."""
    if reader.store.kind is StoreKind.SESSION or reader.first_bytes(view) != b"":
        what = f"the keys of {reader.store.name} cannot be estimated: they share a table, or have several records each"
        raise BadBoundError(what, where="estimate", fix="Leave it out: the count is exact")
    return _estimate(view.stores[reader.store.store_name])


def _estimate(state: View) -> int:
    counted = state.base.count()
    changes = sum(len(tier.changes) for tier in state.tiers)
    if not changes:
        return counted
    sampled = list(dict.fromkeys(islice(chain.from_iterable(tier.changes for tier in state.tiers), SAMPLED)))
    before, now = state.base.get_many(sampled), state.get_many(sampled)
    more = sum((new is not None) - (old is not None) for old, new in zip(before, now, strict=True))
    return max(0, counted + round(more * changes / len(sampled)))
