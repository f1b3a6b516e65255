"""What is asked of one node, and how lookups of one turn become one request (pure: no I/O, no clock).

An ask is one reader's keys of one store under one bound; a hop carries many asks. Equal stores and bounds share a group
of the request, by identity: an equal bound that is another object costs a group, never an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from understudy_router.catalogue import StoreRoute
from understudy_shared.bounds import Bound
from understudy_shared.hop import HopGroup, HopKey, HopOutcome, HopRequest, encode_request

MAX_KEYS_PER_HOP = 1024
"""More travel in the next hop: a node answers a hop in one turn of its own loop, about 5 us a key."""

MAX_ROW_BYTES_PER_HOP = 4 * 1024 * 1024
"""Half of what a hop may have; the rest is room for its header."""


class HopFailure(NamedTuple):
    """Why a node gave no outcomes: the name of a reason, and what is known of it."""

    reason: str
    detail: str


Outcomes = Sequence[HopOutcome] | HopFailure
"""One outcome per key of the ask, in order; or why there are none."""


class Ask:
    """Keys of one store under one bound, for one node. `until_ms` is when its reader stops to wait for this node."""

    __slots__ = ("alone", "bound", "future", "keys", "retried", "route", "until_ms")

    def __init__(
        self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], future: asyncio.Future[Outcomes], until_ms: float
    ) -> None:
        self.route = route
        self.bound = bound
        self.keys = keys
        self.future = future
        self.until_ms = until_ms
        self.retried = False
        self.alone = False
        """Whether it must not share a hop: what came back for all of them together was too large."""

    def __repr__(self) -> str:
        return f"Ask({self.route.name}, {len(self.keys)} keys, until {self.until_ms:.0f})"

    @property
    def row_bytes(self) -> int:
        keys = self.keys
        return len(keys[0][1]) if len(keys) == 1 else sum(len(row) for _, row in keys)

    def finish(self, outcomes: Outcomes) -> None:
        """Tell the reader, if it still waits."""
        if not self.future.done():
            self.future.set_result(outcomes)


class Hop:
    """Asks that travel together. `asks` are in the order in which their outcomes come back."""

    __slots__ = ("asks", "groups", "keys", "sent_ms", "until_ms")

    def __init__(self, asks: Sequence[Ask], sent_ms: float) -> None:
        grouped: dict[tuple[int, int], list[Ask]] = {}
        for ask in asks:
            kind = (id(ask.route), id(ask.bound))
            if kind in grouped:
                grouped[kind].append(ask)
            else:
                grouped[kind] = [ask]
        self.asks = [ask for together in grouped.values() for ask in together]
        self.groups = [_group(together) for together in grouped.values()]
        self.keys = sum(len(group.keys) for group in self.groups)
        self.sent_ms = sent_ms
        self.until_ms = max(ask.until_ms for ask in asks)

    def encode(self, *, application_id: str, end_version: int, term: int, epoch: int) -> bytes:
        """The body of the request."""
        deadline_ms = max(1, int(self.until_ms - self.sent_ms))
        return encode_request(HopRequest(application_id, end_version, term, epoch, deadline_ms, self.groups))

    def shared_out(self, outcomes: Sequence[HopOutcome]) -> Iterator[tuple[Ask, Sequence[HopOutcome]]]:
        """Each ask with its own outcomes; there are as many as keys."""
        start = 0
        for ask in self.asks:
            end = start + len(ask.keys)
            yield ask, outcomes[start:end]
            start = end


def take(waiting: deque[Ask], *, max_keys: int = MAX_KEYS_PER_HOP, max_bytes: int = MAX_ROW_BYTES_PER_HOP) -> list[Ask]:
    """The asks of the next hop, taken from the front: as many as fit, one at least."""
    taken: list[Ask] = []
    keys = row_bytes = 0
    while waiting:
        ask = waiting[0]
        keys += len(ask.keys)
        row_bytes += ask.row_bytes
        if taken and (ask.alone or keys > max_keys or row_bytes > max_bytes):
            break
        taken.append(waiting.popleft())
        if ask.alone:
            break
    return taken


def _group(asks: Sequence[Ask]) -> HopGroup:
    route = asks[0].route
    keys = [key for ask in asks for key in ask.keys]
    return HopGroup(route.name, route.lineage, route.partitions, asks[0].bound, keys)
