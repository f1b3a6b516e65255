"""The feed of the watched keys of one partition: one stream of a node, however many watch at this router.

When the node ends, drains, or stands still while another replica goes on, that one takes over, behind the position of
the feed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import Final, cast

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.fallback import Rejection, ReplicaPlan, rejection_by_problem
from understudy_router.forwarding.replica_following import BEGIN_S, ReplicaFollower
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.feed_hop import KEYS_PATH, MAX_FED_KEYS, OPEN_PATH, FedPartition, FeedHop, FeedKeysHop
from understudy_shared.reads.heard_feed import FeedKey, HeardFeed
from understudy_shared.reads.selection import Selection
from understudy_shared.reads.watch_events import EndReason
from understudy_shared.reads.watch_hop import WatchKey
from understudy_shared.server.watch_streams import WatchStream, slices_of

BEHIND_S: Final = 10.0
"""Time for which a replica may stand still while another one is ahead."""

KEYS_S: Final = 5.0
"""Longest time until a node has added keys."""

PAUSE_S: Final = 0.01
"""Time between two calls that add keys: what is joined meanwhile is added together."""

MAX_REPLY_BYTES: Final = 64 * 1024

log = logging.getLogger(__name__)


class NoFeedsError(UnderstudyError):
    """No node of a partition has feeds: they are of an earlier release."""


class WatchFeed(ReplicaFollower):
    """The watched keys of a partition of the store that `route` returns. `ended` is called when it cannot go on."""

    def __init__(
        self,
        context: ReadContext,
        nodes: NodeCalls,
        identity: ClusterIdentity,
        route: Callable[[], StoreRoute],
        *,
        partition: int,
        selection: Selection,
        ended: Callable[[WatchFeed], None],
    ) -> None:
        super().__init__(context, identity, route)
        first = route()
        self.heard = HeardFeed(first.lineage)
        self.of = _fed(first, partition, selection)
        self.is_over = False
        self._nodes, self._ended = nodes, ended
        self._failed: UnderstudyError | None = None
        self._new: dict[FeedKey, None] = {}
        """Keys that the node was not given yet."""
        self._dropped: list[int] = []
        self._unused: set[FeedKey] = set()
        self._refused: dict[FeedKey, ProblemError] = {}
        self._joining: set[WatchStream] = set()
        self._has_work = asyncio.Event()
        self._has_gone_on = asyncio.Event()
        self._ahead_since_s: float | None = None
        self._looked_at = -1

    # ---- watchers

    def join(self, keys: Iterable[WatchKey], stream: WatchStream) -> list[FeedKey]:
        """Return the keys that a watcher joins; `ready` says when they have their values."""
        known, found = self.heard.keys, []
        for each in keys:
            key = known.get(each.row)
            if key is None:
                key = known[each.row] = FeedKey(each.row, each.printed)
                self._new[key] = None
                self._has_work.set()
            key.users.add(stream)
            found.append(key)
        return found

    async def ready(self, keys: Sequence[FeedKey], stream: WatchStream) -> None:
        """Wait until keys have their values. Raises NoFeedsError, and the problem of keys whose values do not come."""
        self._joining.add(stream)
        within_s = self.context.deadline_ms / 1000 + BEGIN_S
        try:
            async with asyncio.timeout(within_s):
                while not self._are_ready(keys):
                    await stream.wait()
        except TimeoutError:
            what = f"no node has told the values of these keys within {within_s:.0f} s"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, fix="Retry after a second")) from None
        finally:
            self._joining.discard(stream)

    def _are_ready(self, keys: Sequence[FeedKey]) -> bool:
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        if self._refused:
            for key in keys:
                if key in self._refused:
                    raise self._refused[key].with_traceback(None)
        return all(key.is_ready for key in keys)

    def leave(self, keys: Iterable[FeedKey], stream: WatchStream) -> None:
        """Take a watcher from its keys."""
        for key in keys:
            key.users.discard(stream)
            if not key.users:
                self._unused.add(key)

    def sweep(self) -> bool:
        """Drop keys that are not watched any more. Return whether any are left."""
        gone = [key for key in self._unused if not key.users]
        self._unused.clear()
        for key in gone:
            self._new.pop(key, None)
            self._refused.pop(key, None)
        dropped = self.heard.drop(gone)
        if dropped:
            self._dropped += dropped
            self._has_work.set()
        return bool(self.heard.keys)

    # ---- one node after another

    def has_position(self, partitions: Sequence[int]) -> bool:
        return bool(self.heard.position)

    def is_current(self, route: StoreRoute) -> bool:
        return super().is_current(route) and route.lineage == self.of.lineage

    def moved(self) -> None:
        self.fail(None)

    def fail(self, error: UnderstudyError | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        moved = ProblemError(Problem(ProblemType.NOT_INITIALISED, EndReason.MOVED.detail, fix="Retry after a second"))
        self._failed = error or moved
        self._ended(self)
        is_moved = error is None or isinstance(error, NoFeedsError)
        reason = EndReason.MOVED if is_moved else EndReason.UNAVAILABLE
        self.spawn(self._end_all(reason), "end watches")

    async def _end_all(self, reason: EndReason) -> None:
        streams = {cast(WatchStream, stream) for key in self.heard.keys.values() for stream in key.users}
        for few in slices_of(streams):
            for stream in few:
                if stream in self._joining:
                    stream.wake()  # it raises the problem
                else:
                    stream.end(reason)
            await asyncio.sleep(0)

    def require_hope(self, plan: ReplicaPlan, partitions: Sequence[int], began_s: float, until_s: float) -> None:
        if any(rejection.reason == ProblemType.UNKNOWN_PATH.slug for _, rejection in plan.asked):
            raise NoFeedsError("the nodes that can be asked have no feeds")
        super().require_hope(plan, partitions, began_s, until_s)

    async def follow(self, candidate: Candidate, partitions: Sequence[int]) -> Rejection | None:
        route, heard = self.route(), self.heard
        known, new = heard.begin()
        self._new, self._dropped, name = dict.fromkeys(new), [], secrets.token_hex(16)
        self._has_gone_on.clear()
        hop = FeedHop(self.of, name, heard.after, len(known))
        events = await self.opened(candidate, OPEN_PATH, hop.encode())
        if isinstance(events, Rejection):
            return events
        keeping = asyncio.get_running_loop().create_task(
            self._keep_keys(candidate, name, known), name="keep the keys of a feed"
        )
        keeping.add_done_callback(lambda _: events.close())
        try:
            async with aclosing(self.events_of(events, candidate, route, self.of.partition)) as found:
                async for event in found:
                    for changed in heard.heard(event):
                        await self._tell(changed)
                    if event.position is not None:
                        self._has_gone_on.set()
        except (OSError, ValueError, LookupError, TypeError, UnderstudyError) as error:  # whatever a node may send
            log.info("a feed of %s ended: %s", candidate.node_id, error, extra={"action": "watch-upstream-ended"})
        finally:
            events.close()
            keeping.cancel()
            await asyncio.wait([keeping])
        return None

    async def _tell(self, changed: Sequence[FeedKey]) -> None:
        """Wake the watchers of changed keys, a slice in a turn of the loop. Each sends before the next version is
        read.
        """
        if not changed:
            await asyncio.sleep(0)
            return
        streams = {cast(WatchStream, stream) for key in changed for stream in key.users}
        for few in slices_of(streams):
            for stream in few:
                stream.wake()
            await asyncio.sleep(0)

    def should_have(self, route: StoreRoute, candidate: Candidate, partition: int) -> bool:
        """Whether the feed stays with a candidate: lookups could be sent to it, and no other replica does better."""
        if not super().should_have(route, candidate, partition):
            return False
        order = self.context.choices.choose(route, partition, self.bound).order
        mine = next((each for each in order if each.node_id == candidate.node_id), candidate)
        others = [each for each in order if each.node_id != candidate.node_id and not each.is_draining]
        if mine.is_draining and any((each.version or 0) >= self.heard.version for each in others):
            return False
        return not self._is_left_behind(max((each.version or 0 for each in others), default=0))

    def _is_left_behind(self, ahead: int) -> bool:
        """Whether the feed has stood still for long while another replica is `ahead`. The next candidate then has to
        show that version.
        """
        stands_still, self._looked_at = self.heard.version == self._looked_at, self.heard.version
        if ahead <= self.heard.version or not stands_still:
            self._ahead_since_s = None
            return False
        since_s = self._ahead_since_s = self._ahead_since_s or monotonic()
        if monotonic() - since_s < BEHIND_S:
            return False
        self._ahead_since_s = None
        shown = self.heard.after
        if shown is not None:
            self.bound = Bound(min_position=replace(shown, version=ahead, committed_at_us=None))
        return True

    # ---- the keys of the node's feed

    async def _keep_keys(self, candidate: Candidate, name: str, known: Sequence[FeedKey]) -> None:
        """Give a node the keys that are watched, until its feed ends. Return when it does not take them."""
        for start in range(0, len(known), MAX_FED_KEYS):
            if not await self._give(candidate, name, known[start : start + MAX_FED_KEYS], goes_on=True):
                return
        if known:
            await self._has_gone_on.wait()
        while True:
            if not self._new and not self._dropped:
                self._has_work.clear()
                await self._has_work.wait()
            few = list(self._new)[:MAX_FED_KEYS]
            for key in few:
                del self._new[key]
            if not await self._give(candidate, name, few, goes_on=False):
                return
            await asyncio.sleep(PAUSE_S)

    async def _give(self, candidate: Candidate, name: str, keys: Sequence[FeedKey], *, goes_on: bool) -> bool:
        """Add keys to a node's feed, and drop those that are not watched any more. Return whether the feed goes on."""
        dropped, self._dropped = self._dropped, []
        first = self.heard.number(keys)
        dropped += self.heard.drop([key for key in keys if self.heard.keys.get(key.row) is not key])
        given = [WatchKey(self.of.partition, key.row, key.printed) for key in keys]
        body = FeedKeysHop(name, first, given, goes_on, dropped).encode()
        try:
            status, reply = await self._nodes.ask(
                candidate.endpoint, KEYS_PATH, body, max_bytes=MAX_REPLY_BYTES, limit_s=KEYS_S
            )
        except UnderstudyError as error:
            log.info("%s does not add keys: %s", candidate.node_id, error, extra={"action": "watch-upstream-ended"})
            return False
        if status == 200:
            return True
        rejection = rejection_by_problem(reply)
        log.info("%s does not add keys: %s", candidate.node_id, rejection, extra={"action": "watch-upstream-ended"})
        if rejection.reason != ProblemType.OVERLOADED.slug:
            return False
        self.heard.drop(keys)
        problem = ProblemError(Problem(ProblemType.OVERLOADED, rejection.detail, fix="Retry after a second"))
        self._refused.update(dict.fromkeys(keys, problem))
        self._unused.update(keys)
        await self._tell(keys)
        return True


def _fed(route: StoreRoute, partition: int, selection: Selection) -> FedPartition:
    return FedPartition(
        route.application_id, route.lineage, route.name, route.layout, route.partitions, partition, selection
    )
