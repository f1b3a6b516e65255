"""What a read sends when several things come at once, and what it refuses to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tests.support.cluster.fake_cluster import until

from understudy_router.cluster.candidates import Candidate
from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.fallback import Step
from understudy_router.questions.lookup.forward import Forwarder
from understudy_router.questions.scan_forwarder import ScanForwarder
from understudy_router.routing.choose import Choice
from understudy_router.settings import RouterSettings
from understudy_router.transport.node_requests import Delay, NodeRequest
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.throttles import RetryBudget
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.node_calls import NodeCallError
from understudy_shared.cluster.wire import HopFailure, WireError
from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.changes.histories import HistoryHop, HistoryRange
from understudy_shared.questions.lookup.hop import FOUND, HopKeys, HopOutcome, HopOutcomes
from understudy_shared.reads.bounds import NO_BOUND

ROUTE: Any = SimpleNamespace(name="words", codec=SimpleNamespace(is_scattered=False))
KEYS = HopKeys([0, 1, 0, 1], [b"a", b"b", b"c", b"d"])
ANSWER = b'{"partition":1}\n'
HISTORY = HistoryHop("flights", "l1", "words", "layout", 2, 1, b"b", HistoryRange())
HOLDERS = {0: "ACD", 1: "B"}


class SilentClient:
    """Keeps what it was asked; the test answers."""

    heard_ms = 0.0

    def __init__(self) -> None:
        self.requests: list[NodeRequest] = []

    def submit(self, request: NodeRequest) -> None:
        self.requests.append(request)

    def drop(self, request: NodeRequest) -> None:
        request.drop()


class Nodes:
    """Nodes A to D, chosen by who holds a partition. `replies` are those to the calls of scans."""

    def __init__(self, holders: Mapping[int, str] = HOLDERS) -> None:
        self.holders = dict(holders)
        self.clients = {node_id: SilentClient() for node_id in "ABCD"}
        self.replies = {node_id: asyncio.Future[tuple[int, bytes]]() for node_id in "ABCD"}

    def to(self, node_id: str, _endpoint: object) -> SilentClient:
        return self.clients[node_id]

    def probe_if_quiet(self, *_: object) -> None: ...

    def choose(self, _route: object, partition: int, _bound: object) -> Choice:
        holders = [
            Candidate(node_id, HostInfo(node_id, 1), "active", "RUNNING", 1, 0, 0, 0, True, True)
            for node_id in self.holders[partition]
        ]
        return Choice(tuple(holders), (), ())

    async def ask(self, _kind: object, host: HostInfo, *_: object, **__: object) -> tuple[int, bytes]:
        return await self.replies[host.host]

    def refresh(self) -> None: ...
    def doubt_catalogue(self) -> None: ...

    def asked(self, node_id: str) -> list[list[bytes]]:
        """The rows of each request to a node."""
        return [[row for _, row in request.keys] for request in self.clients[node_id].requests]


def forwarder(nodes: Any) -> Forwarder:
    budget = RetryBudget(percent=1000, per_s=1e6, now_ms=0)
    settings = RouterSettings(
        redis="redis://nowhere", application_id="flights", hop_timeout_ms=5_000, deadline_ms=20_000
    )
    return Forwarder(ReadContext(nodes, nodes, nodes, budget, settings=settings, clock=SystemClock()))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def outcomes(values: Sequence[bytes]) -> HopOutcomes:
    return HopOutcomes.of([HopOutcome(FOUND, value, b"}") for value in values])


async def test_of_a_failure_and_a_delay_in_one_turn_the_next_candidate_gets_its_own_keys_once() -> None:
    nodes = Nodes()
    sender = forwarder(nodes)
    async with asyncio.TaskGroup() as tasks:
        read = tasks.create_task(sender.look_up_many(ROUTE, NO_BOUND, KEYS))
        await turns()
        assert (nodes.asked("A"), nodes.asked("B")) == ([[b"a", b"c"]], [[b"b", b"d"]])
        nodes.clients["A"].requests[0].report_delay(Delay.SLOW)
        await turns()
        assert nodes.asked("C") == [[b"a", b"c"]]
        nodes.clients["C"].requests[0].report_delay(Delay.SLOW)
        nodes.clients["A"].requests[0].finish(HopFailure(WireError.RESET, ""))
        await turns()
        assert nodes.asked("D") == [[b"a", b"c"]], "no key of a partition that D does not hold, and none twice"
        assert sender.context.steps == {Step.HEDGE: 4}
        nodes.clients["D"].requests[0].finish(outcomes([b"A", b"C"]))
        nodes.clients["B"].requests[0].finish(outcomes([b"B", b"D"]))
    assert read.result().bodies == [b"A", b"B", b"C", b"D"]


async def test_a_read_waits_a_moment_for_replicas_that_all_open_their_state_as_after_a_rewind() -> None:
    nodes = Nodes()
    client = nodes.clients["B"]
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        read = tasks.create_task(forwarder(nodes).look_up_many(ROUTE, NO_BOUND, HopKeys([1], [b"b"])))
        await turns()
        for _ in range(2):
            asked = len(client.requests)
            client.requests[-1].finish(HopFailure(ProblemType.NOT_INITIALISED.slug, "it is being restored"))
            await until(lambda asked=asked: len(client.requests) > asked, what="the next plan")  # type: ignore[misc]
        client.requests[-1].finish(outcomes([b"B"]))
    assert read.result().bodies == [b"B"]


async def test_a_lookup_and_a_history_ask_the_replica_that_took_over_while_they_waited_for_the_last_one() -> None:
    nodes: Any = Nodes({1: "B"})
    sender = forwarder(nodes)
    scans = ScanForwarder(sender.context, nodes)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        read = tasks.create_task(sender.look_up_many(ROUTE, NO_BOUND, HopKeys([1], [b"b"])))
        part = tasks.create_task(scans.history(ROUTE, HISTORY))
        await turns()
        nodes.holders[1] = "BC"
        nodes.clients["B"].requests[0].finish(HopFailure(WireError.RESET, "killed"))
        nodes.replies["B"].set_exception(NodeCallError("the connection was reset"))
        await until(lambda: bool(nodes.asked("C")), what="the lookup at C")
        nodes.clients["C"].requests[0].finish(outcomes([b"B"]))
        nodes.replies["C"].set_result((200, ANSWER))
    assert (read.result().bodies, part.result()) == ([b"B"], ANSWER[1:])


async def test_a_read_does_not_wait_for_replicas_that_fail_otherwise() -> None:
    nodes = Nodes()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        read = tasks.create_task(forwarder(nodes).look_up_many(ROUTE, NO_BOUND, HopKeys([1], [b"b"])))
        await turns()
        nodes.clients["B"].requests[0].finish(HopFailure(WireError.RESET, "gone"))
    assert nodes.asked("B") == [[b"b"]]
    assert read.result().problems[0].type is ProblemType.NO_ACCEPTABLE_REPLICA
