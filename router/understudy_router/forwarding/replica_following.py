"""Following of partitions at one replica after another: streams of events that nodes send without an end.

When one ends, its partitions go on at other replicas, behind the position that was reached, until no replica can go on
for a while.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Final

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
from understudy_router.transport.node_events import NodeEvents, open_events
from understudy_router.transport.wire import HopFailure
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.watch_events import HopEvent, read_event
from understudy_shared.server.watch_streams import HEARTBEAT_S

BEGIN_S: Final = 8.0
"""Longest time until a node sends its first event: it may wait for a version that the watcher has seen."""

LOOK_S: Final = 3.0
"""Time of silence after which the router looks whether the node should still have the keys."""

SILENT_S: Final = 2 * HEARTBEAT_S + LOOK_S
"""Time of silence after which a node is given up: it sends a sign of life every `HEARTBEAT_S`."""

PATIENCE_S: Final = 30.0
"""Time for which replicas are tried again when all of them refuse."""

RETRY_S: Final = 0.2
TURN_S: Final = 0.001
"""Time for which events that came together are taken in one turn of the event loop."""

log = logging.getLogger(__name__)


class ReplicaFollower(ABC):
    """A follower of some partitions of the store that `route` returns."""

    def __init__(self, context: ReadContext, identity: ClusterIdentity, route: Callable[[], StoreRoute]) -> None:
        self.context, self.route = context, route
        self.bound = NO_BOUND
        """The bound by which replicas are chosen."""
        self._identity = identity
        self._tasks: set[asyncio.Task[None]] = set()
        self._layout = ""

    @abstractmethod
    async def follow(self, candidate: Candidate, partitions: Sequence[int]) -> Rejection | None:
        """Take the events of a node until it ends. Return why it did not begin; None if it had begun."""

    @abstractmethod
    def has_position(self, partitions: Sequence[int]) -> bool:
        """Whether replicas go on behind a position, and do not begin anew."""

    @abstractmethod
    def fail(self, error: UnderstudyError) -> None:
        """Take in that some partitions cannot be followed now."""

    @abstractmethod
    def moved(self) -> None:
        """Take in that keys are encoded or placed in another way now."""

    def is_current(self, route: StoreRoute) -> bool:
        """Whether keys are still encoded and placed as when it began."""
        return route.layout == self._layout

    def start(self, partitions: Sequence[int]) -> None:
        """Begin to follow. Raises the problem of stores that are not known."""
        self._layout = self.route().layout
        self._start(self._plans(partitions), self.context.deadline_ms)

    def close(self) -> Sequence[asyncio.Task[None]]:
        """End all streams. Return the tasks that end."""
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    def _plans(self, partitions: Sequence[int]) -> dict[int, ReplicaPlan]:
        choose, route = self.context.choices.choose, self.route()
        return {partition: ReplicaPlan(choose(route, partition, self.bound)) for partition in partitions}

    def _start(self, plans: Mapping[int, ReplicaPlan], within_ms: float) -> None:
        self.spawn(self._run(plans, within_ms), "watch at a node")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task until it ends, or the follower is closed."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, plans: Mapping[int, ReplicaPlan], within_ms: float) -> None:
        try:
            await self._follow_on(plans, monotonic() + within_ms / 1000)
        except UnderstudyError as error:
            self.fail(error)
        except Exception as error:
            log.exception("a watch at a node ended by a bug", extra={"action": "watch-failed"})
            self.fail(bad_reply(repr(error)))

    async def _follow_on(self, plans: Mapping[int, ReplicaPlan], until_s: float) -> None:
        """Follow some partitions, at one replica after another. Raises the problem of those that cannot be followed."""
        began_s = monotonic()
        while self.is_current(self.route()):
            (candidate, mine), *others = _by_node(plans)
            for _, theirs in others:
                self._start({each: plans[each] for each in theirs}, (until_s - monotonic()) * 1000)
            plans = {each: plans[each] for each in mine}
            if candidate is None:
                self.require_hope(plans[mine[0]], mine, began_s, until_s)
                await asyncio.sleep(RETRY_S)
                plans = self._plans(mine)
                continue
            opened_s = monotonic()
            rejection = await self.follow(candidate, mine)
            if rejection is not None:
                self._note(plans, candidate, rejection)
                continue
            began_s = monotonic()
            until_s = began_s + PATIENCE_S
            await asyncio.sleep(RETRY_S if began_s - opened_s < 1 else 0)
            plans = self._plans(mine)
        self.moved()

    def require_hope(self, plan: ReplicaPlan, partitions: Sequence[int], began_s: float, until_s: float) -> None:
        """Raise the problem of partitions that no replica can go on with, unless that may pass."""
        reasons = {rejection.reason for _, rejection in plan.asked}
        now_s = monotonic()
        is_gone = bool(reasons) and reasons <= {Refusal.VERSION_GONE, Refusal.NOT_ACTIVE}
        may_pass = plan.may_pass or plan.is_restoring or any(map(is_outdated, reasons)) or self.has_position(partitions)
        if is_gone or not may_pass or now_s >= until_s:
            late = bool(plan.rest) and now_s >= until_s
            raise ProblemError(plan.refused(Bound(), late=late, after_ms=(now_s - began_s) * 1000))

    def _note(self, plans: Mapping[int, ReplicaPlan], candidate: Candidate, rejection: Rejection) -> None:
        """Take in that a candidate cannot go on. Raises the problem of a mistake that all nodes would find."""
        context, reason = self.context, rejection.reason
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

    async def opened(self, candidate: Candidate, path: str, body: bytes) -> NodeEvents | Rejection:
        """Open a stream at a node. Return it, or why it did not begin."""
        events = await open_events(candidate.endpoint, path, body, self._identity, limit_s=BEGIN_S)
        if isinstance(events, HopFailure):
            return rejection_by(events)
        return events if isinstance(events, NodeEvents) else rejection_by_problem(events.body)

    async def events_of(
        self, events: NodeEvents, candidate: Candidate, route: StoreRoute, partition: int
    ) -> AsyncGenerator[HopEvent, None]:
        """Yield the events of a node until it ends. Raises OSError for a connection that breaks, ValueError for what no
        node sends.
        """
        looked_s = heard_s = turn_s = monotonic()
        while monotonic() - heard_s < SILENT_S:
            block = events.buffered()
            now_s = monotonic()
            if block is None or now_s - turn_s > TURN_S:
                await asyncio.sleep(0)
                turn_s = monotonic()
            if block is None:
                try:
                    async with asyncio.timeout(LOOK_S):
                        block = await events.next()
                except TimeoutError:
                    block = b""
            heard_s = monotonic() if block else heard_s
            if monotonic() - looked_s >= LOOK_S:
                looked_s = monotonic()
                if not self.should_have(route, candidate, partition):
                    return
            if block is None:
                return
            event = read_event(block) if block else None
            if event is not None and event.kind == "end":
                return
            if event is not None:
                yield event

    def should_have(self, route: StoreRoute, candidate: Candidate, partition: int) -> bool:
        """Whether lookups in a partition could still be sent to a candidate."""
        asked = self.context.choices.choose(route, partition, self.bound).asked
        return any(each.node_id == candidate.node_id and each.is_live and not each.is_silent for each in asked)


def _by_node(plans: Mapping[int, ReplicaPlan]) -> list[tuple[Candidate | None, tuple[int, ...]]]:
    """Group partitions by the node that is asked next; those without one apart."""
    found: dict[str | None, tuple[Candidate | None, list[int]]] = {}
    for partition, plan in plans.items():
        candidate = plan.next()
        found.setdefault(None if candidate is None else candidate.node_id, (candidate, []))[1].append(partition)
    return [(candidate, tuple(partitions)) for candidate, partitions in found.values()]


def bad_reply(what: str) -> ProblemError:
    """Return the problem of a node that does not answer as nodes do."""
    return ProblemError(Problem(ProblemType.BAD_REPLY, what, fix="Connect again after a second"))
