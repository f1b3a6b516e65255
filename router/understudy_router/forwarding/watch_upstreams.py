"""The watches at nodes that serve one watcher of a router: one for each node that holds some of its keys.

When one ends, its partitions go on at other replicas, behind the position that was reached, until no replica can go on
for a while. The reader notices nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final, NamedTuple

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.fallback import (
    Rejection,
    ReplicaPlan,
    Step,
    is_catalogue_outdated,
    is_outdated,
    next_step,
    readers_mistake,
    rejection_by,
    rejection_by_problem,
)
from understudy_router.forwarding.merged_watch import MergedWatch
from understudy_router.transport.node_events import NodeEvents, open_events
from understudy_router.transport.wire import HopFailure
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.position import Position
from understudy_shared.reads.selection import Selection
from understudy_shared.reads.watch_events import EndReason, HopEvent, read_event
from understudy_shared.reads.watch_hop import PATH, WatchHop, WatchKey
from understudy_shared.server.watch_streams import HEARTBEAT_S, WatchStream

BEGIN_S: Final = 8.0
"""Longest time until a node sends its first event: it may wait for a version that the watcher has seen."""

LOOK_S: Final = 3.0
"""Time of silence after which the router looks whether the node should still have the keys."""

SILENT_S: Final = 2 * HEARTBEAT_S + LOOK_S
"""Time of silence after which a node is given up: it sends a sign of life every `HEARTBEAT_S`."""

PATIENCE_S: Final = 30.0
"""Time for which replicas are tried again when all of them refuse."""

RETRY_S: Final = 0.2
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


class WatchUpstreams:
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
        self.heard: deque[Heard] = deque()
        self.has_begun = False
        """Whether a node has begun to watch, which may have no news for long."""
        self.failed: ProblemError | None = None
        """The reason why some of the keys cannot be watched now."""
        self._context, self._identity, self._route = context, identity, route
        self._keys, self._selection = keys, selection
        self._merged, self._stream = merged, stream
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._layout = ""

    def start(self) -> None:
        """Begin to watch all keys. Raises the problem of stores that are not known."""
        self._layout = self._route().layout
        self._start(self._plans(tuple(dict.fromkeys(key.partition for key in self._keys))), self._context.deadline_ms)

    def took(self) -> None:
        """Let upstreams go on that wait for room."""
        self._room.set()

    def close(self) -> None:
        """End all upstreams."""
        for task in self._tasks:
            task.cancel()

    def _plans(self, partitions: Sequence[int]) -> dict[int, ReplicaPlan]:
        choose, route = self._context.choices.choose, self._route()
        return {partition: ReplicaPlan(choose(route, partition, NO_BOUND)) for partition in partitions}

    def _start(self, plans: Mapping[int, ReplicaPlan], within_ms: float) -> None:
        task = asyncio.get_running_loop().create_task(self._run(plans, within_ms), name="watch at a node")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, plans: Mapping[int, ReplicaPlan], within_ms: float) -> None:
        try:
            await self._follow_on(plans, monotonic() + within_ms / 1000)
        except UnderstudyError as error:
            self._fail(error if isinstance(error, ProblemError) else _bad_reply(error.what))
        except Exception as error:
            log.exception("a watch at a node ended by a bug", extra={"action": "watch-failed"})
            self._fail(_bad_reply(repr(error)))

    def _fail(self, error: ProblemError) -> None:
        self.failed = self.failed or error
        self._stream.wake()

    async def _follow_on(self, plans: Mapping[int, ReplicaPlan], until_s: float) -> None:
        """Follow some partitions, at one replica after another. Raises the problem of those that cannot be followed."""
        began_s = monotonic()
        while self._route().layout == self._layout:
            (candidate, mine), *others = _by_node(plans)
            for _, theirs in others:
                self._start({each: plans[each] for each in theirs}, (until_s - monotonic()) * 1000)
            plans = {each: plans[each] for each in mine}
            if candidate is None:
                self._require_hope(plans[mine[0]], mine, began_s, until_s)
                await asyncio.sleep(RETRY_S)
                plans = self._plans(mine)
                continue
            opened_s = monotonic()
            rejection = await self._follow(candidate, mine)
            if rejection is not None:
                self._note(plans, candidate, rejection)
                continue
            began_s = monotonic()
            until_s = began_s + PATIENCE_S
            await asyncio.sleep(RETRY_S if began_s - opened_s < 1 else 0)
            plans = self._plans(mine)
        self._stream.end(EndReason.MOVED)  # its keys are encoded or placed in another way now

    def _require_hope(self, plan: ReplicaPlan, partitions: Sequence[int], began_s: float, until_s: float) -> None:
        """Raise the problem of partitions that no replica can go on with, unless that may pass."""
        reasons = {rejection.reason for _, rejection in plan.asked}
        now_s = monotonic()
        is_gone = bool(reasons) and reasons <= {Refusal.VERSION_GONE, Refusal.NOT_ACTIVE}
        is_begin = self._merged.behind(partitions) is None
        may_pass = plan.may_pass or plan.is_restoring or any(map(is_outdated, reasons)) or not is_begin
        if is_gone or not may_pass or now_s >= until_s:
            late = bool(plan.rest) and now_s >= until_s
            raise ProblemError(plan.refused(Bound(), late=late, after_ms=(now_s - began_s) * 1000))

    def _note(self, plans: Mapping[int, ReplicaPlan], candidate: Candidate, rejection: Rejection) -> None:
        """Take in that a candidate cannot go on. Raises the problem of a mistake that all nodes would find."""
        context, reason = self._context, rejection.reason
        context.fallbacks[reason] += 1
        if is_outdated(reason):
            context.watcher.refresh()
        if is_catalogue_outdated(reason):
            context.watcher.catalogue.doubt()
        if next_step(reason) is Step.STOP:
            raise ProblemError(readers_mistake(rejection))
        for plan in plans.values():
            plan.begin(candidate.node_id, candidate)
            plan.ended(candidate.node_id, rejection)

    async def _follow(self, candidate: Candidate, partitions: Sequence[int]) -> Rejection | None:
        """Take the events of a node until it ends. Return why it did not begin; None if it had begun."""
        route, wanted = self._route(), frozenset(partitions)
        keys = [index for index, key in enumerate(self._keys) if key.partition in wanted]
        after = self._merged.behind(partitions)
        if after is not None and after.lineage != route.lineage:
            await self._put(Heard(keys, partitions, None))
            after = None
        body = self._hop(route, keys, after).encode()
        events = await open_events(candidate.endpoint, PATH, body, self._identity, limit_s=BEGIN_S)
        if isinstance(events, HopFailure):
            return rejection_by(events)
        if not isinstance(events, NodeEvents):
            return rejection_by_problem(events.body)
        self.has_begun = True
        self._stream.wake()
        try:
            await self._take(events, candidate, route, keys, partitions)
        except (OSError, ValueError) as error:
            log.info("a watch at %s ended: %s", candidate.node_id, error, extra={"action": "watch-upstream-ended"})
        finally:
            events.close()
        return None

    async def _take(
        self,
        events: NodeEvents,
        candidate: Candidate,
        route: StoreRoute,
        keys: Sequence[int],
        partitions: Sequence[int],
    ) -> None:
        silent_s = 0.0
        while silent_s < SILENT_S:
            try:
                async with asyncio.timeout(LOOK_S):
                    block = await events.next()
            except TimeoutError:
                silent_s += LOOK_S
                if not self._should_have(route, candidate, partitions[0]):
                    return
                continue
            silent_s = 0.0
            if block is None:
                return
            event = read_event(block)
            if event is None:
                continue
            if event.kind == "end":
                return
            if event.at >= len(keys):
                raise ValueError(f"the node sends an event of key {event.at}, and was asked for {len(keys)}")
            await self._put(Heard(keys, partitions, event))

    async def _put(self, heard: Heard) -> None:
        while len(self.heard) >= MAX_WAITING:
            self._room.clear()
            await self._room.wait()
        self.heard.append(heard)
        self._stream.wake()

    def _should_have(self, route: StoreRoute, candidate: Candidate, partition: int) -> bool:
        """Whether lookups in a partition could still be sent to a candidate."""
        asked = self._context.choices.choose(route, partition, NO_BOUND).asked
        return any(each.node_id == candidate.node_id and each.is_live and not each.is_silent for each in asked)

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


def _by_node(plans: Mapping[int, ReplicaPlan]) -> list[tuple[Candidate | None, tuple[int, ...]]]:
    """Group partitions by the node that is asked next; those without one apart."""
    found: dict[str | None, tuple[Candidate | None, list[int]]] = {}
    for partition, plan in plans.items():
        candidate = plan.next()
        found.setdefault(None if candidate is None else candidate.node_id, (candidate, []))[1].append(partition)
    return [(candidate, tuple(partitions)) for candidate, partitions in found.values()]


def _bad_reply(what: str) -> ProblemError:
    return ProblemError(Problem(ProblemType.BAD_REPLY, what, fix="Connect again after a second"))
