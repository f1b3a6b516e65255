"""Follows the cluster of one application: over the bus while it is reachable, else by asking nodes.

It decides when to read all keys of the bus: after each new subscription, and when the view may be wrong because a call
failed, this process paused, or a document was forged. Until the keys are read, silence proves nothing. Nothing here
ever blocks a lookup.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from understudy_shared.base.background import CANCEL_AGAIN_S
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import is_later
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.assignments import AssignmentChange, apply_change
from understudy_shared.bus.base import Back, BusError, Lost
from understudy_shared.bus.gossip import BACK_SPREAD_HEARTBEATS, AgedHeartbeat, Gossip, Spoken
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.view import ClusterView, answer_deadline_ms, counts_against

log = logging.getLogger(__name__)

MAX_POLLS = 16


class Polls:
    """The polls of one process. Heartbeats go to `heard`; assignments newer than that of `view` go to `assigned`."""

    def __init__(
        self,
        calls: NodeCalls,
        view: ClusterView,
        *,
        heard: Callable[[Heartbeat], object],
        assigned: Callable[[Assignment], object],
        at_once: int = MAX_POLLS,
    ) -> None:
        self._calls = calls
        self._view = view
        self._heard = heard
        self._assigned = assigned
        self._polls = asyncio.Semaphore(at_once)
        self._fetches = asyncio.Lock()
        self._random = random.Random()  # noqa: S311  # which of many, not a secret

    async def poll(self, host: HostInfo, deadline_ms: float | None = None, expected: str | None = None) -> str | None:
        """Read a node's heartbeat, and its assignment if that is newer than the known one.

        Return the id of the node that answered; `None` if no heartbeat arrived within the deadline. The answer of a
        node other than the `expected` one is dropped: its address may belong to another cluster now.
        """
        answered: str | None = None
        async with self._polls:
            try:
                async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                    heartbeat = await self._calls.heartbeat(host)
                answered = heartbeat.node_id
                if expected not in (None, answered):
                    return answered
                self._heard(heartbeat)
                async with self._fetches:  # one node with a newer assignment is enough
                    if is_later((heartbeat.term, heartbeat.epoch), self._view.order):
                        self._assigned(await self._calls.assignment(host))
            except (UnderstudyError, TimeoutError) as error:
                log.debug("%s: %s", host, error or "no answer in time", extra={"action": "poll-failed"})
        return answered

    async def poll_all(self, others: Collection[HostInfo]) -> None:
        """Poll every known node, the `others`, and the nodes that their assignments name."""
        asked: set[HostInfo] = set()
        while new := (self._known() | set(others)) - asked:
            asked |= new
            await asyncio.gather(*(self.poll(host) for host in new))

    async def latest_assignment(self) -> Assignment | None:
        """Read the newest assignment that a heartbeat names, from a node that follows it; `None` if that fails."""
        beats, latest = [node.heartbeat for node in self._view.nodes.values()], self._view.highest()
        if latest == (0, 0):
            return None
        host = self._random.choice([beat for beat in beats if (beat.term, beat.epoch) == latest]).endpoint.host_info()
        try:
            return await self._calls.assignment(host)
        except UnderstudyError as error:
            log.debug("%s", error, extra={"action": "poll-failed"})
            return None

    def _known(self) -> set[HostInfo]:
        # Also nodes that died lately: their silence may have been a fault of the bus. Other nodes may be forged, in
        # thousands.
        view = self._view
        endpoints = [node.heartbeat.endpoint for node_id, node in view.nodes.items() if view.is_known(node_id)]
        endpoints += [dead.heartbeat.endpoint for node_id, dead in view.dead.items() if view.is_known(node_id)]
        if view.assignment is not None:
            endpoints += view.assignment.members.values()
        return {endpoint.host_info() for endpoint in endpoints}


class SilentNodes:
    """The requests of one process to silent nodes. `ask(host, deadline_ms, node_id)` puts the heartbeat of this node
    into the view, and returns the id of the node that answered; None if no node did.
    """

    def __init__(
        self,
        view: ClusterView,
        ask: Callable[[HostInfo, float, str], Awaitable[str | None]],
        *,
        most: int,
        others_heard: Callable[[str, float], bool],
        clock: Clock,
        but: str | None = None,
    ) -> None:
        """Set the limits: at most `most` nodes are asked at a time, and never the node `but`.

        `others_heard` returns whether other nodes were heard since a time. If not, this process or its network may be
        at fault.
        """
        self._view = view
        self._ask = ask
        self._most = most
        self._others_heard = others_heard
        self._clock = clock
        self._but = but

    async def ask_due(self, heartbeat_ms: int) -> bool:
        """Ask the nodes that are due. Return whether any of them did not answer for the first time."""
        due = self._view.to_ask(self._clock.monotonic_ms(), heartbeat_ms=heartbeat_ms, but=self._but)
        return await self.ask(dict(list(due.items())[: self._most]), heartbeat_ms)

    async def ask(self, hosts: Mapping[str, HostInfo], heartbeat_ms: int) -> bool:
        """Ask these nodes, silent or not. Return whether any of them did not answer for the first time."""
        return any(await asyncio.gather(*(self._ask_one(each, host, heartbeat_ms) for each, host in hosts.items())))

    async def _ask_one(self, node_id: str, host: HostInfo, heartbeat_ms: int) -> bool:
        began_ms, deadline_ms = self._clock.monotonic_ms(), answer_deadline_ms(heartbeat_ms)
        self._view.silence.asked(node_id, began_ms)
        if await self._ask(host, deadline_ms, node_id) == node_id:
            return False
        took_ms = self._clock.monotonic_ms() - began_ms
        others_heard = self._others_heard(node_id, began_ms - heartbeat_ms)
        counts = counts_against(took_ms, deadline_ms=deadline_ms, others_heard=others_heard)
        return counts and self._view.did_not_answer(node_id, began_ms)


class ClusterDelegate(Protocol):
    """The callbacks of a follower: what a node and a router do differently."""

    def hear(self, heard: Spoken) -> None:
        """Process a message of the bus."""

    def take_nodes(self, seen: list[AgedHeartbeat]) -> None:
        """Process the keys of the nodes, before other keys are read: a message that arrives meanwhile is newer."""

    async def take_keys(self, seen: list[AgedHeartbeat], assignment: Assignment | None) -> None:
        """Process the keys of the bus. If it raises BusError, it is called again."""

    def bus_lost(self, why: str) -> None:
        """Record that no messages arrive, or that the keys cannot be read."""

    async def ask_others(self) -> None:
        """Use the documents kept on disk, and ask nodes. Called once per heartbeat while Redis is away."""


class ClusterFollower:
    """The follower of one process. `heartbeat_ms` is the interval of the nodes' heartbeats."""

    def __init__(
        self,
        gossip: Gossip,
        view: ClusterView,
        delegate: ClusterDelegate,
        *,
        heartbeat_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.is_subscribed = False
        self.hears_heartbeats = True
        """Whether the current subscription has all heartbeats."""
        self._wants_heartbeats = True
        self._switched = asyncio.Event()
        self._gossip = gossip
        self._view = view
        self._delegate = delegate
        self._heartbeat_ms = heartbeat_ms
        self._clock = clock
        self._must_read = True
        self._reading = asyncio.Lock()
        self._away = asyncio.Event()

    @property
    def is_away(self) -> bool:
        """Whether messages were lost, or a call failed, and the keys were not read since."""
        return self._away.is_set()

    @property
    def is_current(self) -> bool:
        """Whether the subscription is active and all keys were read since; otherwise live nodes may seem missing."""
        return self.is_subscribed and not self._must_read and not self._reading.locked()

    def hear_heartbeats(self, wanted: bool) -> None:
        """Begin or stop listening to all heartbeats. The current subscription is then replaced."""
        if wanted != self._wants_heartbeats:
            self._wants_heartbeats = wanted
            self._switched.set()

    def require_reading(self) -> None:
        """Require that the keys are read before the next decision, because the view may be old or forged."""
        self._must_read = True

    def call_failed(self) -> None:
        """Record that a call to the bus failed. Meanwhile this process may have missed messages of others."""
        self._must_read = True
        self._away.set()

    async def read_if_required(self) -> None:
        """Read all keys if that is required and the subscription is active, unless a read is running."""
        if self._must_read and self.is_subscribed and not self._reading.locked():
            await self.read()

    async def read(self) -> None:
        """Read all keys. With an active subscription no later message is missed."""
        async with self._reading:
            self._must_read = False  # first, because a call that fails meanwhile requires another read
            began_ms = self._clock.monotonic_ms()
            try:
                seen = await self._gossip.nodes(known=self._view.holders)
                self._delegate.take_nodes(seen)
                assignment = await self._gossip.assignment()
                if self._clock.monotonic_ms() - began_ms > self._heartbeat_ms():  # the read hung, and keys expired
                    self._view.reset_heartbeat_ages(self._clock.monotonic_ms())
                await self._delegate.take_keys(seen, assignment)
            except BusError as error:
                self._lost(str(error))
                return
            if self.is_subscribed:
                self._away.clear()

    async def read_nodes(self) -> None:
        async with self._reading:
            self._delegate.take_nodes(await self._gossip.nodes(known=self._view.holders))

    async def run(self) -> None:
        while True:
            self._switched.clear()
            self.is_subscribed, self.hears_heartbeats = False, self._wants_heartbeats
            listening = asyncio.ensure_future(self._listen())
            switched = asyncio.ensure_future(self._switched.wait())
            try:
                await asyncio.wait((listening, switched), return_when=asyncio.FIRST_COMPLETED)
                if listening.done():
                    return await listening
            finally:
                switched.cancel()
                while not listening.done():
                    listening.cancel()
                    await asyncio.wait((listening,), timeout=CANCEL_AGAIN_S)

    async def _listen(self) -> None:
        async for heard in self._gossip.listen(heartbeats=self.hears_heartbeats):
            match heard:
                case Lost():
                    self.is_subscribed = False  # calls may succeed before messages arrive again
                    self._lost(heard.why)
                case Back():
                    if self.is_away:
                        spread_ms = BACK_SPREAD_HEARTBEATS * self._heartbeat_ms()
                        await asyncio.sleep(random.uniform(0, spread_ms) / 1000)  # noqa: S311  # jitter
                    self.is_subscribed = self._must_read = True
                    await self.read()
                case AssignmentChange():
                    await self._take_change(heard)
                case _:
                    self._gossip.handle(heard, self._delegate.hear)

    async def _take_change(self, change: AssignmentChange) -> None:
        """Apply a change, and pass on the assignment. Read the whole one if the base of the change is missing."""
        found = apply_change(change, self._view.assignment)
        if found is None and is_later(change.order, self._view.order):
            await asyncio.sleep(random.uniform(0, BACK_SPREAD_HEARTBEATS * self._heartbeat_ms()) / 1000)  # noqa: S311
            try:
                found = await self._gossip.assignment()
            except BusError as error:
                self._lost(str(error))
        if found is not None:
            self._gossip.handle(found, self._delegate.hear)

    async def go_on_without_the_bus(self) -> None:
        """Ask other nodes once per heartbeat while Redis is away, until cancelled."""
        while True:
            await self._away.wait()
            await self._delegate.ask_others()
            await asyncio.sleep(jittered_s(self._heartbeat_ms()))

    def _lost(self, why: str) -> None:
        self._delegate.bus_lost(why)
        self.call_failed()


def jittered_s(ms: float) -> float:
    """Return about `ms`, in seconds, so that processes that started together do not stay in step."""
    return ms * random.uniform(0.8, 1.2) / 1000  # noqa: S311  # jitter
