"""Lease, term and epoch under anything that may happen to holders and to Redis, in any order.

The real `Leadership` of several nodes runs over the bus in this process and a clock that is moved by hand. A node may
be held up before any of its calls, in the middle of its write as well, and wakes up later; the bus may lose an answer,
all its keys, or every connection. At each write, and whenever all has been quiet for a while, the promises are checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.support.bus.documents import heartbeat
from tests.support.bus.local_bus import LocalBus
from tests.support.clock import ManualClock
from tests.support.cluster.placement_world import assigning

from understudy_node.cluster.context import MemberId, Neighbours
from understudy_node.cluster.leader import Leadership, TaskSet
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, Gossip
from understudy_shared.bus.messages import Assignment, Heartbeat

BEAT_MS = 1000
EXPIRY_MS = EXPIRY_HEARTBEATS * BEAT_MS
TAKEOVER_HEARTBEATS = 3
QUIET_HEARTBEATS = 12
"""After so many without a fault everybody must agree: expiries of the lease and of silence, one after the other."""

TASKS = TaskSet("l1", 2, ["0_0", "0_1"])
WHICH = st.integers(0, 5)


class Line:
    """One node's way to the bus: every call may be held up before it reaches it, or lose its answer."""

    def __init__(self, cluster: Cluster, written: Callable[[], None]) -> None:
        self.calls_until_held: int | None = None
        self.loses_answer_of: str | None = None
        self.is_held = asyncio.Event()
        self._goes_on = asyncio.Event()
        self._cluster = cluster
        self._written = written

    def let_go(self) -> None:
        self.calls_until_held = None
        self.is_held.clear()
        self._goes_on.set()
        self._goes_on = asyncio.Event()

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            await self._wait()
            if self._cluster.is_lost:
                raise BusError("lost", where="in this process")
            found = await getattr(self._cluster.bus, name)(*args, **options)
            if name == "put_fenced" and found:
                self._written()
            if name == self.loses_answer_of:
                self.loses_answer_of = None
                raise BusError("the answer was lost", where="in this process")
            return found

        return call

    async def _wait(self) -> None:
        if self.calls_until_held is not None:
            self.calls_until_held -= 1
            if self.calls_until_held < 0:
                self.is_held.set()
                await self._goes_on.wait()


class Node:
    """What a node does at each heartbeat, as `Member` does it; it follows the assignment that it hears of."""

    def __init__(self, cluster: Cluster, node_id: str) -> None:
        self.node_id = node_id
        self.known: Assignment | None = None
        self.turn: asyncio.Task[None] | None = None
        """The turn under way, while the node is held up."""
        self.must_read = True
        self.turned_ms = cluster.clock.monotonic_ms()
        self.spoke_ms = float("-inf")
        self.unheard: list[Heartbeat | Assignment] = []
        """Messages that arrived while it was held up; its connection keeps them."""
        self.line = Line(cluster, lambda: cluster.check_write(self))
        self.neighbours = Neighbours(node_id)
        self._cluster = cluster
        self._sequence = 0
        self._gossip = Gossip(cast(Bus, self.line), "flights")
        self.placement = Leadership(
            self._gossip,
            assigning(lag_refresh_ms=BEAT_MS, acceptable_recovery_lag=3, rebalance_delay_ms=2 * BEAT_MS),
            MemberId(node_id, "1"),
            clock=cluster.clock,
        )

    @property
    def order(self) -> tuple[int, int]:
        return (0, 0) if self.known is None else self.known.order

    @property
    def is_awake(self) -> bool:
        return self.turn is None

    def hear(self, said: Heartbeat | Assignment) -> None:
        if self.line.is_held.is_set():
            self.unheard.append(said)
        elif isinstance(said, Assignment):
            self.take(said)
        else:
            self.neighbours.heard(said, age_ms=0, now_ms=self._cluster.clock.monotonic_ms())

    def take(self, assignment: Assignment | None) -> None:
        if assignment is not None and assignment.order > self.order:
            self.known = assignment

    async def beat(self) -> None:
        now_ms = self._cluster.clock.monotonic_ms()
        self.must_read |= now_ms - self.turned_ms > 2 * BEAT_MS
        self.turned_ms = now_ms
        try:
            if self.must_read:
                self.neighbours.read(await self._gossip.nodes(), now_ms=now_ms)
                self.take(await self._gossip.assignment())
                self.must_read = False
                self.placement.bus_came_back()
            own = self._heartbeat()
            assert await self._gossip.beat(own)
            self.spoke_ms = self._cluster.clock.monotonic_ms()
            self._cluster.say(own)
            nodes = self.neighbours.alive(now_ms)
            written = await self.placement.turn(
                nodes=nodes,
                tasks=TASKS,
                highest=self.neighbours.highest(),
                known=self.known,
                began_ms=now_ms,
            )
            self.take(written)
        except BusError:
            self.must_read = True

    def _heartbeat(self) -> Heartbeat:
        self._sequence += 1
        term, epoch = self.order
        return heartbeat(
            self.node_id,
            incarnation="1",
            sequence=self._sequence,
            heartbeat_ms=BEAT_MS,
            partitions=2,
            term=term,
            epoch=epoch,
        )


class Cluster:
    """Nodes, one bus, one clock, and what was ever written."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic_ms=50_000)
        self.bus = LocalBus(self.clock)
        self.loop = asyncio.new_event_loop()
        self.nodes: dict[str, Node] = {}
        self.is_lost = False
        self.back_ms = float("-inf")
        self.last: tuple[int, int] = (0, 0)
        """The last write that this Redis, not yet emptied, has seen."""
        self.started = 0

    def start(self) -> Node:
        self.started += 1
        node = self.nodes[f"n{self.started}"] = Node(self, f"n{self.started}")
        return node

    def kill(self, node: Node) -> None:
        del self.nodes[node.node_id]
        if node.turn is not None:
            node.turn.cancel()
            self.loop.run_until_complete(asyncio.wait({node.turn}))

    def heartbeat(self) -> None:
        """Every node that is awake beats once, one after the other."""
        self.clock.advance(BEAT_MS)
        for node in list(self.nodes.values()):
            if node.is_awake:
                node.turn = self.loop.create_task(node.beat())
                self._go_on(node)

    def wake(self, node: Node) -> None:
        """The node goes on where it was held up, whatever changed meanwhile, and then hears of the changes."""
        node.line.let_go()
        self._go_on(node)
        unheard, node.unheard = node.unheard, []
        for said in unheard:
            node.hear(said)

    def flush(self) -> None:
        self.bus.__init__(self.clock)  # type: ignore[misc]  # emptied in place, as FLUSHALL does
        self.last = (0, 0)

    def holder(self) -> str | None:
        """The node that has the lease."""
        owner = self.loop.run_until_complete(Gossip(self.bus, "flights").lease_holder())
        return None if owner is None else owner.partition("/")[0]

    def stored(self) -> Assignment | None:
        return self.loop.run_until_complete(Gossip(self.bus, "flights").assignment())

    def say(self, said: Heartbeat | Assignment) -> None:
        for node in self.nodes.values():
            node.hear(said)

    def check_write(self, writer: Node) -> None:
        """What was written this moment, and every promise about it.

        A node that was held up until now has not yet reported what it follows; all others have.
        """
        (written,) = [self._decoded(value.payload) for value in self.bus._values.values() if value.order is not None]
        assert written.written_by == writer.node_id
        lease = self.bus._leases[Gossip(self.bus, "flights").names.lease]
        assert lease.owner == f"{writer.node_id}/1", "written by a node that no longer had the lease"
        assert lease.order == (written.term, 0), "written under an old term"
        assert written.order > self.last, "two assignments of one term and epoch, or an older one"
        recent_ms = self.clock.monotonic_ms() - BEAT_MS
        followed = max(node.order for node in self.nodes.values() if node.spoke_ms >= recent_ms)
        assert written.order > followed, f"{written.order} although {followed} is followed"
        knew = writer.order > (0, 0)
        assert not knew or self.clock.monotonic_ms() - self.back_ms >= EXPIRY_MS or writer.turned_ms <= self.back_ms, (
            "assigned too early after the bus came back"
        )
        self.last = written.order
        self.say(written)

    def _decoded(self, payload: bytes) -> Assignment:
        return Assignment.decode(payload.partition(b"\n")[2], application_id="flights", where="the bus")

    def _go_on(self, node: Node) -> None:
        turn = node.turn
        assert turn is not None

        async def until_done_or_held() -> None:
            held = asyncio.ensure_future(node.line.is_held.wait())
            await asyncio.wait({turn, held}, return_when=asyncio.FIRST_COMPLETED)
            held.cancel()

        self.loop.run_until_complete(until_done_or_held())
        if turn.done():
            node.turn = None
            turn.result()


class AnyFault(RuleBasedStateMachine):
    """Whatever happens, no holder overwrites a later one; when it is over, one assigns and all follow it."""

    @initialize(nodes=st.integers(1, 4))
    def begin(self, nodes: int) -> None:
        self.cluster = Cluster()
        self.calm = 0
        for _ in range(nodes):
            self.cluster.start()

    def pick(self, which: int) -> Node:
        nodes = list(self.cluster.nodes.values())
        return nodes[which % len(nodes)]

    @rule(count=st.integers(1, 4))
    def time_passes(self, count: int) -> None:
        for _ in range(count):
            self.cluster.heartbeat()
        self.calm += count

    @precondition(lambda self: len(self.cluster.nodes) < 4)
    @rule()
    def a_node_starts(self) -> None:
        self.cluster.start()
        self.calm = 0

    @precondition(lambda self: self.cluster.nodes)
    @rule(which=WHICH)
    def a_node_dies(self, which: int) -> None:
        self.cluster.kill(self.pick(which))
        self.calm = 0

    @precondition(lambda self: self.cluster.nodes)
    @rule(which=WHICH, calls=st.integers(0, 6))
    def a_node_is_held_up(self, which: int, calls: int) -> None:
        self.pick(which).line.calls_until_held = calls
        self.calm = 0

    @precondition(lambda self: any(not node.is_awake for node in self.cluster.nodes.values()))
    @rule(which=WHICH)
    def a_node_wakes_up(self, which: int) -> None:
        held = [node for node in self.cluster.nodes.values() if not node.is_awake]
        self.cluster.wake(held[which % len(held)])
        self.calm = 0

    @precondition(lambda self: self.cluster.nodes)
    @rule(which=WHICH, call=st.sampled_from(["put_fenced", "acquire", "renew", "get", "put_owned"]))
    def an_answer_is_lost(self, which: int, call: str) -> None:
        self.pick(which).line.loses_answer_of = call
        self.calm = 0

    @rule()
    def redis_is_emptied(self) -> None:
        self.cluster.flush()
        self.calm = 0

    @rule()
    def redis_is_lost(self) -> None:
        self.cluster.is_lost = True
        self.calm = 0

    @precondition(lambda self: self.cluster.is_lost)
    @rule(is_empty=st.booleans())
    def redis_is_back(self, is_empty: bool) -> None:
        if is_empty:
            self.cluster.flush()
        self.cluster.is_lost = False
        self.cluster.back_ms = self.cluster.clock.monotonic_ms()
        for node in self.cluster.nodes.values():
            node.must_read = True
        self.calm = 0

    @precondition(lambda self: self.calm >= QUIET_HEARTBEATS and self.is_whole() and len(self.cluster.nodes) > 1)
    @rule()
    def the_holder_dies_and_is_replaced(self) -> None:
        holder = self.cluster.holder()
        assert holder is not None
        self.cluster.kill(self.cluster.nodes[holder])
        for _ in range(TAKEOVER_HEARTBEATS):
            self.cluster.heartbeat()
        assert self.cluster.holder() in self.cluster.nodes
        self.calm = 0

    @rule()
    def all_is_quiet_for_a_while(self) -> None:
        if not self.is_whole():
            return
        for _ in range(QUIET_HEARTBEATS):
            self.cluster.heartbeat()
        self.calm += QUIET_HEARTBEATS
        self.check_agreement()

    def is_whole(self) -> bool:
        """Whether no node is held up or about to be, and Redis is there."""
        nodes = self.cluster.nodes.values()
        return (
            bool(nodes)
            and not self.cluster.is_lost
            and all(node.is_awake and node.line.calls_until_held is None for node in nodes)
        )

    def check_agreement(self) -> None:
        stored = self.cluster.stored()
        assert stored is not None
        assert self.cluster.holder() in self.cluster.nodes
        holders = [node.node_id for node in self.cluster.nodes.values() if node.placement.fence is not None]
        assert holders == [self.cluster.holder()]
        assert all(node.order == stored.order for node in self.cluster.nodes.values())
        assert {task.active for task in stored.tasks.values()} <= self.cluster.nodes.keys()

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        try:
            if self.cluster.is_lost:
                self.redis_is_back(is_empty=False)
            for node in list(self.cluster.nodes.values()):
                node.line.calls_until_held = None
                if not node.is_awake:
                    self.cluster.wake(node)
            self.all_is_quiet_for_a_while()
        finally:
            for node in list(self.cluster.nodes.values()):
                self.cluster.kill(node)
            self.cluster.loop.run_until_complete(self.cluster.loop.shutdown_default_executor())
            self.cluster.loop.close()


TestAnyFault = AnyFault.TestCase
TestAnyFault.settings = settings(max_examples=40, stateful_step_count=30)
