"""The version that a scan or an export reads at a node: chosen, waited for, and kept for the parts to come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from understudy_node.replica.read_views import Reading
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.problems import ProblemError
from understudy_shared.reads.bounds import Bound, ReadVersion, Refusal, version_of

PINNED_AHEAD = 16
"""Number of partitions whose version is pinned for the pages to come; others may have to be opened again."""

OPEN_WAIT_S = 2.0
"""Longest time that a page waits for an older version to be opened."""

ROUTER_WAIT_S = 0.5
"""Longest time that a router waits for a version: it asks again, and gives a node up that is silent for a second."""

LOOK_AGAIN_S = 0.02


async def first_version(
    reader: StoreReader, partitions: Sequence[int], bound: Bound, *, wait_s: float | None = None
) -> ReadVersion:
    """Return the version that a bound names, else the newest that all of these partitions show. Waits for at most
    `wait_s`, if it is given. Raises the problem of a partition that does not keep the bound.
    """
    asked = partitions if bound.read_version is None else partitions[:1]
    views = [(await reading_at(reader, partition, bound, wait_s)).view for partition in asked]
    oldest = min(views, key=lambda view: view.version)
    return version_of(oldest.version, oldest.committed_at_us)


async def reading_at(reader: StoreReader, partition: int, bound: Bound, longest_s: float | None = None) -> Reading:
    """Return the version of a partition that a bound asks for, when it is there: waits as the bound says, and for at
    most `longest_s`, if it is given. Raises its problem.
    """
    began_s = monotonic()
    while True:
        found = reader.read_from(partition, bound)
        if isinstance(found, Reading):
            return found
        refusal = found.refusal
        wait_s = OPEN_WAIT_S if refusal is Refusal.VERSION_OPENING else bound.wait_ms / 1000
        left_s = began_s + (wait_s if longest_s is None else min(wait_s, longest_s)) - monotonic()
        if refusal is None or not refusal.may_pass or left_s <= 0:
            raise ProblemError(found)
        await asyncio.sleep(min(LOOK_AGAIN_S, left_s))


def pin_ahead(reader: StoreReader, partitions: Sequence[int], version: ReadVersion) -> None:
    """Keep a version readable for the pages to come, where it is on show or pinned now."""
    for partition in partitions[:PINNED_AHEAD]:
        replica = reader.replicas.get(partition)
        view = None if replica is None else replica.view_at(version)
        if replica is not None and view is not None:
            replica.pin(view)
