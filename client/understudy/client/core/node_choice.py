"""The choice of the node to ask for a key, or the reason to ask a router (pure).

A node or a partition that failed is left alone for a pause that grows. Failures are paid from a budget: when it is
empty every read goes to routers for a while, so that direct routing adds few requests however much is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from understudy.client.core.endpoints import Endpoint
from understudy.client.core.judging import Judged, Meaning
from understudy.client.core.metadata import StoreMetadata
from understudy.client.core.pauses import Pauses
from understudy.client.core.placement import Placement
from understudy.client.core.state import RETRY_PER_S, RETRY_PERCENT, ClientState
from understudy.client.core.values import VERSIONS, wait_s
from understudy.client.results import RoutingCounts, Why
from understudy_shared.base.retry_budget import FADE_MS, RetryBudget

MAX_WAIT_S = 1.0
"""The longest wait for a position that a node is asked for: a router knows which node has it."""

_CREDENTIAL_PAUSE_S = 60.0
_OF_ROUTERS = (*VERSIONS, "cursor")

Members = Mapping[str, Any]
"""Bounds as JSON."""


class NodeRead(NamedTuple):
    """A read that a node is asked for, by what is known of the store.

    `members` are its bounds, with the store's defaults at the router; `partitions` has the partition of each key, by
    its place among those of the call.
    """

    entry: StoreMetadata
    placement: Placement
    endpoint: Endpoint
    members: Members
    wait_s: float
    partitions: Mapping[int, int]


class NodeChoice:
    """The choice of one client, and what it remembers of nodes."""

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self._nodes: Pauses[Endpoint] = Pauses(state.rng)
        self._partitions: Pauses[tuple[Endpoint, StoreMetadata, int]] = Pauses(state.rng)
        self._all: Pauses[None] = Pauses(state.rng)
        # Its own, so that nodes that fail never cost a call its retries at routers.
        self._budget = RetryBudget(percent=RETRY_PERCENT, per_s=RETRY_PER_S, now_ms=state.now_s() * 1000 - FADE_MS)
        self._answered = 0
        self._routed: Counter[Why] = Counter()

    def __repr__(self) -> str:
        return f"NodeChoice({len(self._nodes.failing)} nodes and {len(self._partitions.failing)} partitions fail)"

    def counts(self, fetched: int) -> RoutingCounts:
        """Return the keys that nodes answered, and those of routers by the reason."""
        return RoutingCounts(self._answered, {str(why): keys for why, keys in self._routed.items()}, fetched)

    def by_router(self, why: Why, keys: int = 1) -> None:
        """Count keys that a router is asked for."""
        self._routed[why] += keys

    # ---- before a node is asked

    def read_of(self, entry: StoreMetadata, parts: Sequence[Any], given: Members, now_s: float) -> NodeRead | Why:
        """Return the read of one key, or why a router is asked."""
        placement = entry.usable(now_s)
        if placement is None:
            return Why.NO_METADATA
        bounds = _bounds(placement, given)
        if isinstance(bounds, Why):
            return bounds
        partition = placement.partition(parts)
        if partition is None:
            return Why.KEY
        node = self._node_of(entry, placement, partition, now_s)
        return node if isinstance(node, Why) else NodeRead(entry, placement, node, *bounds, {0: partition})

    def reads_of(self, entry: StoreMetadata, keys: Sequence[Any], given: Members) -> list[NodeRead]:
        """Return a read for each node that is asked for some of the keys, and count those of routers."""
        now_s = self._state.now_s()
        placement = entry.usable(now_s)
        if placement is None:
            self.by_router(Why.NO_METADATA, len(keys))
            return []
        bounds = _bounds(placement, given)
        if isinstance(bounds, Why):
            self.by_router(bounds, len(keys))
            return []
        found = placement.partitions(keys)
        asked: dict[Endpoint | Why, dict[int, Any]] = {}
        by_partition = {
            each: asked.setdefault(Why.KEY if each is None else self._node_of(entry, placement, each, now_s), {})
            for each in set(found)
        }
        for at, partition in enumerate(found):
            by_partition[partition][at] = partition
        reads = []
        for node, partition_of in asked.items():
            if isinstance(node, Why):
                self.by_router(node, len(partition_of))
            else:
                reads.append(NodeRead(entry, placement, node, *bounds, partition_of))
        return reads

    def _node_of(self, entry: StoreMetadata, placement: Placement, partition: int, now_s: float) -> Endpoint | Why:
        """Return the node to ask for a partition, or why a router is asked."""
        endpoint = placement.actives[partition]
        if endpoint is None:
            return Why.NO_ACTIVE
        is_paused = (
            (self._all.failing and self._all.left_s(None, now_s))
            or (self._nodes.failing and self._nodes.left_s(endpoint, now_s))
            or (self._partitions.failing and self._partitions.left_s((endpoint, entry, partition), now_s))
        )
        return Why.PAUSED if is_paused else endpoint

    # ---- after it was asked

    def succeeded(self, read: NodeRead, places: Collection[int]) -> None:
        """Note that a node gave the answers to the keys at these places."""
        self._answered += len(places)
        self._state.budget.asked(1)
        self._budget.asked(1)
        if self._nodes.failing:
            self._nodes.succeeded(read.endpoint)
        if self._all.failing:
            self._all.succeeded(None)
        if self._partitions.failing:
            for partition in {read.partitions[at] for at in places}:
                self._partitions.succeeded((read.endpoint, read.entry, partition))

    def failed(self, read: NodeRead, judged: Judged, places: Collection[int]) -> bool:
        """Note that a node gave no answer to the keys at these places that can be used: routers are asked for them.

        Return whether the assignment may be another by now.
        """
        now_s = self._state.now_s()
        why = _why(judged)
        self.by_router(why, len(places))
        if judged.meaning is Meaning.UNAUTHENTICATED:
            self._nodes.failed(read.endpoint, now_s, _CREDENTIAL_PAUSE_S)
        elif judged.kind is not None or judged.blames_server or judged.meaning is Meaning.LIMITED:
            self._nodes.failed(read.endpoint, now_s, judged.retry_after_s)
        else:
            for partition in {read.partitions[at] for at in places}:
                self._partitions.failed((read.endpoint, read.entry, partition), now_s)
        if judged.meaning is not Meaning.NOT_SENT and not self._budget.try_spend(1, now_s * 1000):
            self._all.failed(None, now_s)
        return why is not Why.FAILED or judged.kind is not None


def _why(judged: Judged) -> Why:
    if judged.meaning is Meaning.ANSWER:
        return Why.DOUBT
    return Why.NOT_OWNER if judged.error is not None and judged.error.status == 421 else Why.FAILED


def _bounds(placement: Placement, given: Members) -> tuple[Members, float] | Why:
    """Return the bounds that a node is given, and their wait, or why a router has to keep them."""
    if not given and not placement.bounds:
        return given, 0.0
    members = {**placement.bounds, **given}
    waits_s = wait_s(members)
    is_of_routers = members.get("require_active") or not members.keys().isdisjoint(_OF_ROUTERS)
    return Why.BOUND if is_of_routers or waits_s > MAX_WAIT_S else (members, waits_s)
