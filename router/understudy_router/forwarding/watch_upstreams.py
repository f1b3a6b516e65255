"""The watches at nodes that serve one watcher of a router alone: one for each node that holds some of its keys.

It is the way to nodes of earlier releases, which have no feeds. The reader notices nothing of replicas that take over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.fallback import Rejection
from understudy_router.forwarding.merged_watch import MergedWatch
from understudy_router.forwarding.replica_following import ReplicaFollower, bad_reply
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.problems import ProblemError
from understudy_shared.reads.position import Position
from understudy_shared.reads.selection import Selection
from understudy_shared.reads.watch_events import EndReason, HopEvent
from understudy_shared.reads.watch_hop import PATH, WatchHop, WatchKey
from understudy_shared.server.watch_streams import WatchStream

MAX_WAITING: Final = 16
"""Number of events that are read and not passed on yet; nodes keep what comes behind them."""

log = logging.getLogger(__name__)


class Heard(NamedTuple):
    """An event of a node: the keys that the node was asked for, by index, and their partitions. Without an event: they
    begin anew, because they belong to another history now.
    """

    keys: Sequence[int]
    partitions: Sequence[int]
    event: HopEvent | None


class WatchUpstreams(ReplicaFollower):
    """The upstreams of one watcher, woken with `stream` for each event. `heard` has what they have sent."""

    def __init__(
        self,
        context: ReadContext,
        identity: ClusterIdentity,
        route: Callable[[], StoreRoute],
        keys: Sequence[WatchKey],
        selection: Selection,
        *,
        merged: MergedWatch,
        stream: WatchStream,
    ) -> None:
        super().__init__(context, identity, route)
        self.heard: deque[Heard] = deque()
        self.has_begun = False
        """Whether a node has begun to watch, which may have no news for long."""
        self.failed: ProblemError | None = None
        """The reason why some of the keys cannot be watched now."""
        self._keys, self._selection = keys, selection
        self._merged, self._stream = merged, stream
        self._room = asyncio.Event()

    def took(self) -> None:
        """Let upstreams go on that wait for room."""
        self._room.set()

    def has_position(self, partitions: Sequence[int]) -> bool:
        return self._merged.behind(partitions) is not None

    def fail(self, error: UnderstudyError) -> None:
        self.failed = self.failed or (error if isinstance(error, ProblemError) else bad_reply(error.what))
        self._stream.wake()

    def moved(self) -> None:
        self._stream.end(EndReason.MOVED)

    async def follow(self, candidate: Candidate, partitions: Sequence[int]) -> Rejection | None:
        route, wanted = self.route(), frozenset(partitions)
        keys = [index for index, key in enumerate(self._keys) if key.partition in wanted]
        after = self._merged.behind(partitions)
        if after is not None and after.lineage != route.lineage:
            await self._put(Heard(keys, partitions, None))
            after = None
        events = await self.opened(candidate, PATH, self._hop(route, keys, after).encode())
        if isinstance(events, Rejection):
            return events
        self.has_begun = True
        self._stream.wake()
        try:
            async with aclosing(self.events_of(events, candidate, route, partitions[0])) as found:
                async for event in found:
                    if event.at >= len(keys):
                        raise ValueError(f"an event is of key {event.at}, and the node was asked for {len(keys)}")
                    await self._put(Heard(keys, partitions, event))
        except (OSError, ValueError) as error:
            log.info("a watch at %s ended: %s", candidate.node_id, error, extra={"action": "watch-upstream-ended"})
        finally:
            events.close()
        return None

    async def _put(self, heard: Heard) -> None:
        while len(self.heard) >= MAX_WAITING:
            self._room.clear()
            await self._room.wait()
        self.heard.append(heard)
        self._stream.wake()

    def _hop(self, route: StoreRoute, keys: Sequence[int], after: Position | None) -> WatchHop:
        return WatchHop(
            route.application_id,
            route.lineage,
            route.name,
            route.layout,
            route.partitions,
            [self._keys[index] for index in keys],
            after,
            self._selection,
        )
