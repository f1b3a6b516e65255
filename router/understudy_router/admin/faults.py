"""The fault that an indicator shows, and words for it (data)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

from understudy_router.admin.snapshot import Snapshot
from understudy_shared.http.health import MAX_AFFECTED, Indicator, State

FEW = 3
"""Most names in a sentence."""

CHECKPOINT_UNREADABLE = "checkpoint-unreadable"
"""The cause by which a node is degraded that cannot follow its checkpoint."""

T = TypeVar("T")


def fault(  # noqa: PLR0917  # the members of an indicator, in their order
    state: State, symptom: str, impact: str = "", cause: str = "", action: str = "", affected: Iterable[str] = ()
) -> Indicator:
    """Return the indicator that shows one fault: what is seen of it, whom it hurts, why it is so, what to do, and
    where. It gets its name from the table of indicators.
    """
    return Indicator("", state, symptom, impact, cause, action, tuple(affected))


attention = partial(fault, State.ATTENTION)
"""The constructor of a fault that takes away a reserve."""

hurt = partial(fault, State.HURT)
"""The constructor of a fault that readers notice."""


def unknown(symptom: str, cause: str, action: str) -> Indicator:
    """Return the fault of an indicator that cannot be judged."""
    return fault(State.UNKNOWN, symptom, cause=cause, action=action)


def named(names: Iterable[str], between: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    known = list(names)
    return between.join(known[:FEW]) + (f" and {len(known) - FEW} more" if len(known) > FEW else "")


def first(found: Mapping[str, T]) -> T:
    """Return what was found of the first name."""
    return next(iter(found.values()))


def be(names: Collection[object], one: str = "is", many: str = "are") -> str:
    """Return the verb for one thing or for many."""
    return one if len(names) == 1 else many


def store_partitions(snapshot: Snapshot, tasks: Iterable[int]) -> tuple[str, ...]:
    """Return the store partitions of the first tasks, as `store/partition`."""
    index = snapshot.index
    found: list[str] = []
    for task in islice(tasks, MAX_AFFECTED):
        found += [f"{store}/{index.partition[task]}" for store in index.stores_of[index.operator_id[task]]]
    return tuple(found)


def count_of(snapshot: Snapshot, tasks: Mapping[int, int]) -> int:
    """Return the number of the store partitions of so many tasks of each operator."""
    return sum(count * len(snapshot.index.stores_of[operator_id]) for operator_id, count in tasks.items())


def store_partitions_in_all(snapshot: Snapshot) -> int:
    return sum(route.partitions for route in snapshot.index.routes)


def waiting_nodes(snapshot: Snapshot) -> dict[str, str]:
    """Return the live nodes that wait for their checkpoint, and the part of it that they wait for."""
    return {beat.node_id: beat.waits_for for beat in snapshot.heartbeats if beat.waits_for is not None}


def blind_nodes(snapshot: Snapshot) -> list[str]:
    """Return the live nodes that cannot read the checkpoint."""
    return [beat.node_id for beat in snapshot.heartbeats if CHECKPOINT_UNREADABLE in beat.degraded]
