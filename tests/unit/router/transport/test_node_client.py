"""The client of one node, and the tick of all clients: what is refused, what is late, which readers hear of silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.cluster.fake_cluster import catalogue, until
from tests.support.cluster.fake_node import FakeNode, Hang, fake_nodes, found
from tests.support.router.tables import beat, expire, port_of, tables_of, task

from understudy_router.cluster.catalogue import stores_of
from understudy_router.cluster.health import MAX_BAD_IN_A_ROW, Health
from understudy_router.cluster.tables import Tables
from understudy_router.transport import node_clients
from understudy_router.transport.client_context import ClientContext, HopReports, IdleConnections
from understudy_router.transport.node_client import FULL_KEYS, LONE_HOPS, MAX_CONNECTIONS, NodeClient
from understudy_router.transport.node_clients import IDLE_S, MAX_PROBES, NodeClients, Probing
from understudy_router.transport.node_requests import Delay, NodeRequest, Outcomes, Patience, Reply
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.wire import HopFailure
from understudy_shared.questions.lookup.hop import HopGroup, HopKey, HopOutcome, HopReply
from understudy_shared.reads.bounds import NO_BOUND

ROUTE = stores_of(catalogue(), "d1").get("words")
KEY = HopKey(0, b"r")
NOWHERE = HostInfo("127.0.0.1", 1)
NOBODY = ClusterIdentity(None, "flights")


def value(_group: HopGroup, _key: HopKey) -> HopOutcome:
    return found("v")


class RecordingListener(HopReports):
    """Keeps what a client reports."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, float]] = []
        self.failures: list[tuple[str, HopFailure, bool]] = []
        self.silences: list[tuple[str, float]] = []

    def known(self) -> tuple[int, int, int]:
        return (7, 1, 1)

    def answered(self, node_id: str, reply: HopReply, now_ms: float, took_ms: float) -> None:
        self.answers.append((node_id, took_ms))

    def failed(self, node_id: str, failure: HopFailure, *, sent: bool) -> None:
        self.failures.append((node_id, failure, sent))

    def silent(self, node_id: str, for_ms: float) -> None:
        self.silences.append((node_id, for_ms))


def context(listener: RecordingListener, clock: ManualClock, hedge_after_ms: float = 50) -> ClientContext:
    return ClientContext("flights", listener, Patience(hedge_after_ms=hedge_after_ms), clock, NOBODY)


@asynccontextmanager
async def client_to(host: HostInfo, clock: ManualClock, listener: RecordingListener) -> AsyncIterator[NodeClient]:
    client = NodeClient("a", host, context(listener, clock))
    try:
        yield client
    finally:
        await client.close()


class Waiter:
    """A reader: the delays that were reported to it, and its outcomes."""

    def __init__(self) -> None:
        self.delays: list[Delay] = []
        self.outcomes: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: Reply) -> None:
        if isinstance(reply, Delay):
            self.delays.append(reply)
        else:
            self.outcomes.set_result(reply)


class World:
    """Clients of nodes, under a clock that is moved by hand."""

    def __init__(self, nodes: Sequence[FakeNode], *, allowance: float = 0.0, hedge_after_ms: float = 50) -> None:
        self.clock, self.listener, self.nodes = ManualClock(), RecordingListener(), nodes
        self.clients = NodeClients(
            context(self.listener, self.clock, hedge_after_ms),
            suspect_after_ms=200,
            hop_timeout_ms=1000,
            allowance=lambda _now_ms: allowance,
        )

    def host(self, number: int) -> HostInfo:
        return HostInfo("127.0.0.1", self.nodes[number].port)

    def client(self, number: int) -> NodeClient:
        return self.clients.to(self.nodes[number].node_id, self.host(number))

    async def submit(self, number: int, *, keys: int = 1) -> Waiter:
        """Send a request to a node, and return when the node has it."""
        had = len(self.nodes[number].hops)
        waiter = asked(self.client(number), [KEY] * keys, now_ms=self.clock.monotonic_ms())
        await until(lambda: len(self.nodes[number].hops) > had)
        return waiter

    def pass_ms(self, ms: int) -> None:
        """Let so many ms pass, with every tick on time."""
        for _ in range(0, ms, 10):
            self.clock.advance(10)
            self.clients.tick(self.clock.monotonic_ms())


@asynccontextmanager
async def world(*answers: object, **settings: float) -> AsyncIterator[World]:
    async with fake_nodes(*answers) as nodes:  # type: ignore[arg-type]  # answers, or Hang
        made = World(nodes, **settings)
        try:
            yield made
        finally:
            await made.clients.close()


def asked(client: NodeClient, keys: Sequence[HopKey], *, now_ms: float = 0.0, until_ms: float = 1000.0) -> Waiter:
    waiter = Waiter()
    client.submit(NodeRequest(ROUTE, NO_BOUND, keys, waiter.on_reply, now_ms, now_ms + until_ms))
    return waiter


async def test_what_does_not_fit_in_the_queue_is_refused_at_once_and_the_rest_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("understudy_router.transport.node_requests.MAX_WAITING_KEYS", 5)
    listener = RecordingListener()
    async with client_to(NOWHERE, ManualClock(), listener) as client:
        first, second, third = asked(client, [KEY] * 3), asked(client, [KEY] * 3), asked(client, [KEY] * 2)
        assert second.outcomes.result() == HopFailure("overloaded", "3 keys wait for this node")
        assert (first.outcomes.done(), third.outcomes.done(), client.load) == (False, False, 5)
    assert (
        first.outcomes.result()
        == third.outcomes.result()
        == HopFailure("refused", "the client of this node was closed")
    )
    assert asked(client, [KEY]).outcomes.result() == HopFailure("refused", "the client of this node was closed")
    assert [sent for _, _, sent in listener.failures] == [False]


async def test_requests_of_one_tick_share_a_hop_until_it_is_full() -> None:
    async with world(value) as at:
        first = [await at.submit(0), await at.submit(0)]
        await asyncio.gather(*[each.outcomes for each in first])
        client, before = at.client(0), len(at.nodes[0].keys)
        small = [asked(client, [KEY] * 10) for _ in range(3)]
        await asyncio.gather(*[each.outcomes for each in small])
        large = [asked(client, [KEY] * FULL_KEYS) for _ in range(2)]
        await asyncio.gather(*[each.outcomes for each in large])
        assert at.nodes[0].keys[before:] == [30, FULL_KEYS, FULL_KEYS]


async def test_what_waits_longer_than_its_reader_is_a_timeout_that_says_nothing_about_the_node() -> None:
    listener = RecordingListener()
    async with client_to(NOWHERE, ManualClock(), listener) as client:
        soon, late = asked(client, [KEY], until_ms=10), asked(client, [KEY], until_ms=20)
        client.expire(10)
        assert isinstance(soon.outcomes.result(), HopFailure)
        assert soon.outcomes.result()[0] == "timeout"
        assert not late.outcomes.done()
        assert client.load == 1
        assert [sent for _, _, sent in listener.failures] == [False]


async def test_a_node_that_answers_nothing_while_another_does_is_silent_and_all_its_readers_learn_it_once() -> None:
    async with world(Hang(), value) as at:
        first = await at.submit(0)
        at.pass_ms(150)
        second = await at.submit(0)
        await (await at.submit(1)).outcomes
        assert (first.delays, second.delays) == ([], [])
        at.pass_ms(50)
        assert (first.delays, second.delays) == ([Delay.SILENT], [Delay.SILENT])
        at.pass_ms(100)
        assert at.listener.silences == [("a", 200)]
        assert at.client(0).is_silent


async def test_without_an_answer_of_another_node_the_silence_may_be_this_routers_fault() -> None:
    async with world(Hang(), value) as at:
        await (await at.submit(1)).outcomes
        at.clock.advance(10)
        waiting = await at.submit(0)
        at.pass_ms(500)
        assert at.listener.silences == []
        assert waiting.delays == [Delay.SLOW]  # its reader learns at least that it waits for long


async def test_after_this_process_stood_still_nobody_is_called_silent_before_answers_were_read() -> None:
    async with world(Hang(), value) as at:
        waiting = await at.submit(0)
        at.pass_ms(50)
        at.clock.advance(400)
        await (await at.submit(1)).outcomes  # its answer was read first
        at.pass_ms(190)
        assert at.listener.silences == []
        at.pass_ms(30)
        assert [node_id for node_id, _ in at.listener.silences] == ["a"]
        assert waiting.delays == [Delay.SLOW, Delay.SILENT]


async def test_an_answer_ends_the_silence_and_the_next_one_is_reported_again() -> None:
    async with world(value, value) as at:
        at.nodes[0].held = asyncio.Event()
        for _ in range(2):
            waiting = await at.submit(0)
            at.clock.advance(1)
            await (await at.submit(1)).outcomes
            at.pass_ms(210)
            assert waiting.delays
            at.nodes[0].held.set()
            assert await waiting.outcomes == (found("v"),)
            assert not at.client(0).is_silent
            at.nodes[0].held.clear()
            at.clock.advance(10)
        assert len(at.listener.silences) == 2


async def test_a_connection_that_is_never_made_is_silence_too() -> None:
    async with fake_nodes(value, value) as nodes, _no_accept() as port:
        at = World(nodes)
        try:
            client = at.clients.to("deaf", HostInfo("127.0.0.1", port))
            waiting = asked(client, [KEY])
            await until(lambda: client.quiet_since_ms() is not None)
            at.clock.advance(1)
            await (await at.submit(1)).outcomes
            at.pass_ms(210)
            assert at.listener.silences
            assert waiting.delays == [Delay.SILENT]
        finally:
            await at.clients.close()


@asynccontextmanager
async def _no_accept() -> AsyncIterator[int]:
    """A port whose queue of connections is full: more of them are never answered."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            yield listener.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


async def test_a_client_that_nobody_uses_is_closed_and_one_that_is_used_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_clients, "SWEEP_S", 0.01)
    async with world(value) as known, asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(known.clients.close_unused())
        gone = known.clients.to("gone", NOWHERE)
        known.clock.advance((IDLE_S + 1) * 1000)
        await (await known.submit(0)).outcomes
        used = known.client(0)
        await until(lambda: known.clients.to("gone", NOWHERE) is not gone)
        assert asked(gone, [KEY]).outcomes.done(), "it is closed"
        assert known.client(0) is used
        closing.cancel()


@pytest.mark.parametrize(
    ("allowance", "expected"), [(0.0, [[], []]), (1.0, [[Delay.SLOW], []]), (2.0, [[Delay.SLOW], [Delay.SLOW]])]
)
async def test_slow_reads_are_reported_after_the_hedges_delay_as_far_as_the_budget_goes(
    allowance: float, expected: list[list[Delay]]
) -> None:
    async with world(Hang(), allowance=allowance) as at:
        both = [await at.submit(0), await at.submit(0)]
        at.pass_ms(40)
        assert [each.delays for each in both] == [[], []]
        at.pass_ms(10)
        assert [each.delays for each in both] == expected


async def test_a_probe_is_an_empty_hop_that_shares_nothing_and_counts_as_an_answer() -> None:
    async with world(value) as at:
        at.nodes[0].held = asyncio.Event()
        busy = [await at.submit(0), await at.submit(0)]
        behind = asked(at.client(0), [KEY])
        probe = at.clients.probe("a", at.host(0))
        await until(lambda: at.nodes[0].probes == 1, what="the probe to be at the node, past the queue")
        assert at.clients.probe("a", at.host(0)) is not probe
        at.clock.advance(7)
        at.nodes[0].held.set()
        assert await probe == 7
        assert [await each.outcomes for each in (*busy, behind)] == [(found("v"),)] * 3
        assert (at.nodes[0].keys, at.nodes[0].probes) == ([1, 1, 1], 1)
        assert at.listener.answers.count(("a", 7.0)) == 3
        assert at.nodes[0].accepted == 3
        await until(lambda: len(at.nodes[0].connections) == 2, what="the probe's own connection to be closed")


@pytest.mark.parametrize("how", ["killed", "hangs", "closed"])
async def test_a_probe_always_ends_and_the_listener_hears_of_it(how: str) -> None:
    async with world(Hang()) as at:
        probe = at.client(0).probe(50 if how == "hangs" else 60_000)
        if how == "killed":
            await at.nodes[0].kill()
        elif how == "closed":
            await at.clients.close()
        outcome = await probe
        assert isinstance(outcome, HopFailure)
        assert outcome.reason == {"killed": outcome.reason, "hangs": "timeout", "closed": "refused"}[how]
        assert [(node_id, sent) for node_id, _, sent in at.listener.failures] == (
            [] if how == "closed" else [("a", True)]
        )


async def test_a_node_that_nobody_asked_lately_is_probed_once_to_learn_whether_others_answer() -> None:
    async with world(Hang(), value) as at:
        waiting = await at.submit(0)
        at.clock.advance(1)
        for _ in range(5):
            at.clients.probe_if_quiet("b", at.host(1))
        await until(lambda: at.listener.answers)
        at.clients.probe_if_quiet("b", at.host(1))
        at.pass_ms(200)
        assert (at.nodes[1].keys, at.nodes[1].probes) == ([], 1)
        assert waiting.delays == [Delay.SILENT]


async def test_a_request_that_comes_alone_is_sent_at_once_and_a_crowd_shares_hops() -> None:
    async with world(value) as it:
        client = it.client(0)
        for _ in range(LONE_HOPS):
            waiter = asked(client, [KEY])
            assert "0 hops in flight, 1 keys wait" in repr(client)
            await waiter.outcomes
        crowd = [asked(client, [KEY])]
        assert "1 hops in flight, 0 keys wait" in repr(client)
        crowd += [asked(client, [KEY]) for _ in range(3)]
        assert "1 hops in flight, 3 keys wait" in repr(client)
        for waiter in crowd:
            await waiter.outcomes
        waiter = asked(client, [KEY])
        assert "0 hops in flight, 1 keys wait" in repr(client)
        await waiter.outcomes
        assert it.nodes[0].keys == [1] * (LONE_HOPS + 1) + [3, 1]


class Application:
    """The clients of one application, and its way to ask."""

    def __init__(self, name: str, idle: IdleConnections) -> None:
        self.clock = SystemClock()
        identity = ClusterIdentity(None, "").within(name)
        context = ClientContext(name, RecordingListener(), Patience(hedge_after_ms=0), self.clock, identity, idle)
        self.clients = NodeClients(context, suspect_after_ms=60_000, hop_timeout_ms=60_000, allowance=lambda _: 0.0)

    def ask(self, node: FakeNode) -> asyncio.Future[Outcomes]:
        """Ask for one key; the future gets its outcome."""
        client = self.clients.to(node.node_id, HostInfo("127.0.0.1", node.port))
        return asked(client, [KEY], now_ms=self.clock.monotonic_ms(), until_ms=60_000).outcomes


def _has_heard(node: FakeNode, hops: int) -> bool:
    return len(node.hops) == hops


@asynccontextmanager
async def applications(*names: str) -> AsyncIterator[list[Application]]:
    idle = IdleConnections()
    made = [Application(name, idle) for name in names]
    try:
        yield made
    finally:
        for each in made:
            await each.clients.close()
    assert repr(idle) == "IdleConnections(0 to 0 nodes)"


async def test_applications_that_ask_in_turn_use_one_connection() -> None:
    async with fake_nodes(lambda *_: found("v")) as (node,), applications("a", "b", "c") as known:
        for _ in range(2):
            for each in known:
                assert not isinstance(await each.ask(node), HopFailure)
        assert [hop.application_id for hop in node.hops] == ["a", "b", "c"] * 2
        assert node.accepted == 1


async def test_an_application_whose_hops_hang_takes_no_connection_from_another() -> None:
    async with fake_nodes(Hang()) as (node,), applications("slow", "quick") as (slow, quick):
        for number in range(1, MAX_CONNECTIONS + 1):  # each hop is under way before the next request, or they share one
            slow.ask(node)
            await until(partial(_has_heard, node, number))
        waiting = slow.ask(node)
        await until(lambda: node.accepted == MAX_CONNECTIONS)
        node.answer = lambda *_: found("v")
        assert not isinstance(await quick.ask(node), HopFailure)
        assert not waiting.done(), "an application has so many hops in flight, and no more"


DEADLINE_MS = 1000


class ProbeSender:
    """Keeps the probes that it was asked to send; the test sets their results."""

    def __init__(self) -> None:
        self.probes: list[tuple[str, HostInfo]] = []
        self.futures: list[asyncio.Future[float | HopFailure]] = []

    def probe(self, node_id: str, host: HostInfo) -> asyncio.Future[float | HopFailure]:
        self.probes.append((node_id, host))
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    @property
    def names(self) -> list[str]:
        return [node_id for node_id, _ in self.probes]


def probing(tables: Tables) -> tuple[Probing, ProbeSender]:
    sender: Any = ProbeSender()
    return Probing(tables, sender, deadline_ms=DEADLINE_MS, clock=ManualClock()), sender


async def test_a_suspect_is_probed_where_it_listens_about_once_per_heartbeat() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.hop_failed("b", 0, "reset")
    turns, sender = probing(tables)
    for now_ms in range(0, 10_000, 50):
        turns.turn(now_ms)
        for future in sender.futures:
            if not future.done():
                future.set_result(1.0)
    assert set(sender.probes) == {("b", HostInfo("127.0.0.1", port_of("b")))}
    assert 8 <= len(sender.probes) <= 13, "between 0.8 and 1.2 heartbeats"


async def test_a_node_is_not_probed_again_before_its_probe_is_answered_or_late() -> None:
    tables = tables_of(task("a"), beat("a", heartbeat_ms=100))
    tables.hop_failed("a", 0, "reset")
    turns, sender = probing(tables)
    for now_ms in (0, 300, 600, DEADLINE_MS - 1):
        turns.turn(now_ms)
    assert len(sender.probes) == 1
    turns.turn(DEADLINE_MS)
    assert sender.futures[0].cancelled()
    assert len(sender.probes) == 2


async def test_probes_on_their_way_are_bounded_and_the_others_have_their_turn() -> None:
    names = [f"n{number:02}" for number in range(2 * MAX_PROBES)]
    tables = tables_of(task(*names), *(beat(name) for name in names))
    for name in names:
        tables.hop_failed(name, 0, "reset")
    turns, sender = probing(tables)
    turns.turn(1)
    turns.turn(2)
    assert len(sender.probes) == MAX_PROBES
    for future in sender.futures:
        future.set_result(HopFailure("timeout", ""))
    turns.turn(3)
    assert sorted(sender.names) == names


async def test_a_node_that_died_meanwhile_is_not_probed() -> None:
    tables = tables_of(task("a"), beat("a"))
    for number in range(MAX_BAD_IN_A_ROW):
        tables.hop_failed("a", 100 * number, "reset")
    assert tables.health.of("a").health is Health.QUARANTINED
    expire(tables, 3001)
    turns, sender = probing(tables)
    turns.turn(100_000)
    assert sender.probes == []
