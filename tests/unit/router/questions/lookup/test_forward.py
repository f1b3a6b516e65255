"""What a read sends when several things come at once, and what it refuses to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.cluster.fake_cluster import until

from understudy_router.cluster.candidates import Candidate
from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.fallback import Results, Step
from understudy_router.questions.lookup.forward import Forwarder, RecordedRequest, gathered, spread
from understudy_router.questions.scan_forwarder import ScanForwarder
from understudy_router.routing.choose import Choice
from understudy_router.settings import RouterSettings
from understudy_router.transport.node_requests import Delay, NodeRequest, Outcomes, Reply
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.throttles import RetryBudget
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage
from understudy_shared.cluster.node_calls import NodeCallError
from understudy_shared.cluster.wire import HopFailure, WireError
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.questions.changes.histories import HistoryHop, HistoryRange
from understudy_shared.questions.lookup.batches import NOT_FOUND
from understudy_shared.questions.lookup.hop import (
    ABSENT,
    FOUND,
    NO_PARTITION,
    OPEN,
    PROBLEM,
    HopKey,
    HopKeys,
    HopOutcome,
    HopOutcomes,
)
from understudy_shared.reads.bounds import NO_BOUND
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.key_codec import ANY_PARTITION
from understudy_shared.telemetry.spans import Attributes, Trace

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


async def test_when_halves_of_a_batch_fail_after_others_were_answered_by_a_hedge_the_next_candidate_is_asked() -> None:
    """An attempt that is not needed any more keeps no read waiting."""
    nodes = Nodes({0: "ACD"})
    first, hedge, last = (nodes.clients[each].requests for each in "ACD")
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        read = tasks.create_task(forwarder(nodes).look_up_many(ROUTE, NO_BOUND, HopKeys([0, 0], [b"a", b"c"])))
        await turns()
        for sent in (first, hedge):
            sent[0].finish(HopFailure(WireError.TOO_LARGE, ""))
            await turns()
            for half in first[1:]:
                half.report_delay(Delay.SLOW)
            await turns()
        assert (nodes.asked("A"), nodes.asked("C")) == ([[b"a", b"c"], [b"a"], [b"c"]],) * 2
        first[1].finish(outcomes([b"A"]))
        await turns()
        for half in (first[2], hedge[2]):
            half.finish(HopFailure(WireError.TIMEOUT, ""))
        await turns()
        assert nodes.asked("D") == [[b"c"]]
        last[0].finish(outcomes([b"C"]))
    assert read.result().bodies == [b"A", b"C"]


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


OWN = Trace("a" * 32, "c" * 16, True)
REFUSED = HopOutcome(PROBLEM, b'{"type":"store-error","detail":"?"}')


class OneSpan:
    """A span that counts what is done with it."""

    trace = OWN

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.errors: list[str] = []

    def note(self, attributes: Attributes) -> None:
        self.attributes.update(attributes)

    def end(self, *, error: str = "") -> None:
        self.errors.append(error)


def attempt() -> tuple[RecordedRequest, OneSpan, list[Reply]]:
    route: Any = None  # only its name is used, and not here
    replies: list[Reply] = []
    span = OneSpan()
    request = NodeRequest(route, NO_BOUND, [HopKey(0, b"")], replies.append, 0.0, 1.0, is_active=False)
    return RecordedRequest(request, span), span, replies


@pytest.mark.parametrize(
    ("outcomes", "attributes", "error"),
    [
        ([HopOutcome(FOUND, b"")], {}, ""),
        ([HopOutcome(ABSENT, b"")], {}, ""),
        ([HopOutcome(FOUND, b""), REFUSED], {"understudy.outcome": "store-error"}, ""),
        ([HopOutcome(PROBLEM, b"?")], {"understudy.outcome": str(WireError.BAD_REPLY)}, ""),
        (HopFailure("timeout", "no reply in time"), {}, "timeout"),
    ],
    ids=["found", "absent", "a problem", "no JSON", "no answer"],
)
def test_its_outcomes_end_the_span(outcomes: Outcomes, attributes: dict[str, str], error: str) -> None:
    request, span, replies = attempt()
    assert (request.trace, request.is_active, request.until_ms) == (OWN, False, 1.0)
    request.finish(outcomes)
    request.finish(outcomes)
    assert (replies, span.attributes, span.errors) == ([outcomes], attributes, [error])


def test_a_request_that_nobody_wants_any_more_ends_as_cancelled_and_says_if_it_was_slow() -> None:
    request, span, replies = attempt()
    request.report_delay(Delay.SLOW)
    request.drop()
    request.drop()
    request.finish([HopOutcome(FOUND, b"")])
    assert (replies, span.errors) == ([Delay.SLOW], ["cancelled"])
    request, span, _ = attempt()
    request.report_delay(Delay.SLOW)
    request.finish([HopOutcome(FOUND, b"")])
    assert span.attributes == {"understudy.delay": "slow"}


BAD = Problem(ProblemType.BAD_KEY, "a key that does not parse")
SPREAD_KEYS = HopKeys([ANY_PARTITION, NO_PARTITION, ANY_PARTITION], [b"a", b"", b"c"])


def test_each_key_is_asked_of_each_partition_and_one_with_a_problem_of_none() -> None:
    keys, problems = spread(SPREAD_KEYS, {1: BAD}, 2)
    assert list(keys) == [(0, b"a"), (NO_PARTITION, b""), (0, b"c"), (1, b"a"), (NO_PARTITION, b""), (1, b"c")]
    assert problems == {1: BAD, 4: BAD}


def test_what_partitions_say_of_a_key_is_one_result_in_the_order_of_the_keys() -> None:
    keys, problems = spread(SPREAD_KEYS, {1: BAD}, 2)
    results = Results(len(keys), problems)
    for at, (partition, row) in enumerate(keys):
        if partition != NO_PARTITION:
            is_found = (partition, row) == (1, b"c")
            members = b'"found":true,' if is_found else NOT_FOUND
            tail = b'"partition":%d,"version":3,' % partition
            results.keep(at, HopOutcome(FOUND if is_found else ABSENT, members, tail))
    found, unsettled = gathered("op0", results, 2, {1: BAD})
    assert not unsettled
    assert found[0] == HopOutcome(ABSENT, NOT_FOUND, b'"partition":null,"version":3,')
    assert found[1] is BAD
    assert found[2] == HopOutcome(FOUND, b'"found":true,', b'"partition":1,"version":3,')


def test_a_key_that_partitions_lack_at_different_versions_stays_open_and_is_asked_at_the_oldest() -> None:
    results = Results(4, {})
    for at, version in enumerate((3, 3, 4, 3)):
        position = Position(ApplicationId("app"), Lineage("l1"), version, None).encode().encode()
        tail = b'"partition":%d,"version":%d,"position":"%b"}' % (at // 2, version, position)
        results.keep(at, HopOutcome(ABSENT, NOT_FOUND, tail))
    found, unsettled = gathered("op0", results, 2, {})
    assert unsettled == {Position(ApplicationId("app"), Lineage("l1"), 3, None): [0]}
    assert (found.kinds[0], found.kinds[1]) == (OPEN, ABSENT)
