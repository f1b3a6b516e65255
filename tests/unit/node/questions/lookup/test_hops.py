"""How a hop treats the loop that it runs on, later assignments, and damage of a single key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.spark.counting_query import WORDS

from understudy_node.node import Node
from understudy_node.questions.lookup import hop as hop_module
from understudy_node.questions.lookup.hop import HOP_SLICE_KEYS, MAX_SPANS, Hops, record_hop
from understudy_node.questions.lookup.reads import NodeReads, find_everywhere
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import ApplicationId, Lineage, Role, StoreName
from understudy_shared.http.edge import Send
from understudy_shared.http.problems import Problem, refused
from understudy_shared.questions.lookup.hop import (
    ABSENT,
    FOUND,
    HOP_SLICE_GROUPS,
    MAX_HOP_KEYS,
    PATH,
    PROBLEM,
    HopGroup,
    HopKey,
    HopOutcome,
    HopReply,
    HopRequest,
    HopTrace,
    decode_reply,
    encode_request,
)
from understudy_shared.reads.bound_parsing import StoreBounds
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.key_codec import ANY_PARTITION
from understudy_shared.telemetry.spans import Attributes, Kind, Trace

HOP_SCOPE = {"type": "http", "raw_path": PATH.encode(), "method": "POST"}


async def nowhere(*_: object) -> None:
    raise AssertionError("a hop is answered here")


def holding_of(node: Node) -> StoreReader:
    assert node.generation is not None
    return node.generation.readers[StoreName("op0")]


def request_of(node: Node, count: int, *, bound: Bound = NO_BOUND, order: tuple[int, int] = (0, 0)) -> HopRequest:
    holding = holding_of(node)
    codec = holding.store.codec
    rows = [(WORDS[at % len(WORDS)],) for at in range(count)]
    keys = [HopKey(codec.partition(row, holding.partitions), codec.encode(row)) for row in rows]
    group = HopGroup("op0", node.lineage, holding.partitions, bound, keys, holding.layout)
    return HopRequest(node.settings.application, 0, *order, 30_000, [group])


async def answered(hops: Hops, request: HopRequest) -> HopReply:
    sent = await sent_by(hops, request)
    assert sent[0]["status"] == 200
    return decode_reply(sent[1]["body"])


async def sent_by(hops: Hops, request: HopRequest) -> list[MutableMapping[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": encode_request(request)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await hops(HOP_SCOPE, receive, send)
    return sent


def hops_of(node: Node, order: tuple[int, int] | None = None) -> Hops:
    """The end of a node that follows the assignment `order`; None for one outside of a cluster."""
    current_order = None if order is None else (lambda: order)
    return Hops(nowhere, NodeReads(node, StoreBounds()), order=current_order, max_in_flight=4)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data", node_id="n1") as followed:
        wait_to_hold(followed, "0_0", "0_1")
        yield followed


async def turns_for(hops: Hops, request: HopRequest) -> tuple[int, Sequence[HopOutcome]]:
    """How often the loop went on while a hop was answered, and the answers."""
    hop = asyncio.ensure_future(answered(hops, request))
    turns = 0
    while not hop.done():
        turns += 1
        await asyncio.sleep(0)
    return turns, hop.result().outcomes


async def test_a_long_hop_gives_the_loop_up_while_it_is_decoded_and_while_it_is_answered(node: Node) -> None:
    turns, outcomes = await turns_for(hops_of(node), request_of(node, 10 * HOP_SLICE_KEYS))
    assert len(outcomes) == 10 * HOP_SLICE_KEYS
    assert turns >= 10
    one = request_of(node, 1)
    (group,) = one.groups
    for each, kind in ((group, FOUND), (group._replace(lineage="another"), PROBLEM)):
        turns, outcomes = await turns_for(hops_of(node), one._replace(groups=[each] * MAX_HOP_KEYS))
        assert {outcome.kind for outcome in outcomes} == {kind}
        assert turns >= MAX_HOP_KEYS // HOP_SLICE_GROUPS + MAX_HOP_KEYS // HOP_SLICE_KEYS


async def test_beyond_the_hops_that_may_be_in_flight_one_is_refused_and_a_body_that_comes_slowly_takes_no_place(
    node: Node,
) -> None:
    hops = Hops(nowhere, NodeReads(node, StoreBounds()), order=None, max_in_flight=1)
    slow = asyncio.ensure_future(hops(HOP_SCOPE, asyncio.Future, cast(Send, nowhere)))
    long = asyncio.ensure_future(answered(hops, request_of(node, 10 * HOP_SLICE_KEYS)))
    await asyncio.sleep(0)
    sent = await sent_by(hops, request_of(node, 1))
    assert (sent[0]["status"], orjson.loads(sent[1]["body"])["type"]) == (429, "overloaded")
    assert len((await long).outcomes) == 10 * HOP_SLICE_KEYS
    assert len((await answered(hops, request_of(node, 1))).outcomes) == 1
    slow.cancel()


async def test_a_hop_whose_deadline_passes_while_it_is_decoded_is_refused_as_a_whole(node: Node) -> None:
    one = request_of(node, 1)
    late = one._replace(groups=[*one.groups] * MAX_HOP_KEYS, deadline_ms=0)
    sent = await sent_by(hops_of(node), late)
    assert (sent[0]["status"], orjson.loads(sent[1]["body"])["type"]) == (504, "deadline")


async def test_nothing_more_is_looked_up_for_a_reply_that_is_longer_than_a_router_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=1).create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0")
        monkeypatch.setattr(hop_module, "MAX_REPLY_BYTES", 1000)
        request = request_of(node, 10 * HOP_SLICE_KEYS)
        for each in (request, request._replace(groups=[*request_of(node, HOP_SLICE_KEYS).groups] * 10)):
            outcomes = (await answered(hops_of(node), each)).outcomes
            assert [outcome.kind for outcome in outcomes] == [FOUND] * HOP_SLICE_KEYS + [PROBLEM] * 9 * HOP_SLICE_KEYS
            assert orjson.loads(outcomes[-1].body)["type"] == "too-large"
            assert sum(len(outcome.body) for outcome in outcomes) > 1000, "the router has to see that it is too large"


async def test_a_reader_that_knows_of_a_later_assignment_and_requires_the_active_is_refused(node: Node) -> None:
    hops, active = hops_of(node, (2, 5)), Bound(require_active=True)
    for order, kind in (((2, 6), PROBLEM), ((3, 0), PROBLEM), ((2, 5), FOUND), ((1, 9), FOUND)):
        reply = await answered(hops, request_of(node, 1, bound=active, order=order))
        assert (reply.term, reply.epoch, reply.outcomes[0].kind) == (2, 5, kind)
    later = await answered(hops, request_of(node, 1, order=(9, 9)))
    assert later.outcomes[0].kind == FOUND, "an epoch never decides who owns a key"
    served_by = orjson.loads(b"{" + later.outcomes[0].body + later.outcomes[0].tail)["served_by"]
    assert (served_by["node_id"], served_by["role"]) == ("n1", "active")
    node.assign({"0_0": Role.STANDBY, "0_1": Role.STANDBY})
    demoted = await answered(hops, request_of(node, 2, bound=active, order=(2, 5)))
    assert {outcome.kind for outcome in demoted.outcomes} == {PROBLEM}


async def test_a_row_that_is_damaged_is_a_problem_of_its_own(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=1).create()
    checkpoint.add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0")
        request = request_of(node, 3)
        damaged = request.groups[0].keys[1].row
        replica = holding_of(node).replicas[0]
        assert replica.view is not None
        store = replica.view.stores["default"]
        (changes,) = [tier.changes for tier in store.tiers if damaged in tier.changes]
        assert isinstance(changes, dict)
        changes[damaged] = b"cut"
        reply = await answered(hops_of(node), request)
        assert [outcome.kind for outcome in reply.outcomes] == [FOUND, PROBLEM, FOUND]
        assert orjson.loads(reply.outcomes[1].body)["type"] == "store-error"


TRACE = Trace("a" * 32, "b" * 16, True)
OUTCOMES = [HopOutcome(FOUND, b""), HopOutcome(ABSENT, b""), HopOutcome(PROBLEM, b'{"type":"not-owner"}')]
TEXTS = ["found", "absent", "not-owner"]


class Recorder:
    """Spans as they were begun and ended; a trace that is not sampled has none."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def begin(
        self, method: str, route: str, kind: Kind, parent: Trace | None, attributes: Attributes, *, ago_s: float = 0.0
    ) -> OneSpan | None:
        assert parent is not None
        if not parent.is_sampled:
            return None
        self.spans.append({"parent": parent, "ago_s": ago_s, **attributes})
        return OneSpan(self.spans[-1])

    def close(self) -> None:
        """Nothing is left."""


class OneSpan:
    """Its attributes are kept by the recorder."""

    trace = TRACE

    def __init__(self, kept: dict[str, Any]) -> None:
        self._kept = kept

    def note(self, attributes: Attributes) -> None:
        self._kept.update(attributes)

    def end(self, *, error: str = "") -> None:
        self._kept["error"] = error


def recorded(request: HopRequest, outcomes: list[HopOutcome]) -> list[dict[str, Any]]:
    recorder = Recorder()
    record_hop(recorder, request, outcomes, took_s=0.5)
    return recorder.spans


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_a_span_says_the_store_and_the_partition_of_its_key_and_what_came_of_it(
    sizes: list[int], data: st.DataObject
) -> None:
    groups = [
        HopGroup(f"s{number}", "l", 9, NO_BOUND, [HopKey(partition, b"") for partition in range(size)], "x")
        for number, size in enumerate(sizes)
    ]
    keys = [(group.store, key.partition) for group in groups for key in group.keys]
    chosen = data.draw(st.lists(st.tuples(st.integers(0, len(keys) - 1), st.booleans())))
    traces = [HopTrace(place, TRACE._replace(is_sampled=sampled)) for place, sampled in chosen]
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=len(keys), max_size=len(keys)))
    spans = recorded(HopRequest("a", 1, 1, 1, 9, groups, traces=traces), [OUTCOMES[kind] for kind in kinds])
    places = [place for place, sampled in chosen if sampled]
    assert [span["understudy.partition"] for span in spans] == [keys[place][1] for place in places]
    assert [span["understudy.outcome"] for span in spans] == [TEXTS[kinds[place]] for place in places]
    for span, place in zip(spans, places, strict=True):
        assert span.get("understudy.store") == (None if kinds[place] == PROBLEM else keys[place][0])
        assert (span["parent"], span["ago_s"], span["error"]) == (TRACE, 0.5, "")


def test_a_hop_has_no_more_spans_than_fit_into_a_turn_of_the_loop() -> None:
    keys = [HopKey(0, b"")] * (MAX_SPANS + 1)
    traces = [HopTrace(place, TRACE) for place in range(len(keys))]
    request = HopRequest("a", 1, 1, 1, 9, [HopGroup("s", "l", 1, NO_BOUND, keys, "x")], traces=traces)
    assert len(recorded(request, OUTCOMES[:1] * len(keys))) == MAX_SPANS


SHOWN = {0: 4, 1: 3}
"""The newest version of each partition."""
HELD = {(0, 4): {b"b"}, (0, 3): {b"a", b"b"}, (1, 3): set[bytes]()}
"""The keys of each partition at each version: the one ahead lost `a`."""


class Reader:
    """A reader of two partitions at different versions. One without `past` has yet to open older ones."""

    partitions = 2
    store = SimpleNamespace(name="op0", codec=SimpleNamespace(is_scattered=True))

    def __init__(self, *, past: bool = True) -> None:
        self.past = past
        self.pinned: list[int] = []
        self.replicas = dict.fromkeys(SHOWN, SimpleNamespace(pin=self.pinned.append))

    def read_from(self, partition: int, bound: Bound) -> Any:
        version = SHOWN[partition] if bound.read_version is None else bound.read_version.number
        if version < SHOWN[partition] and not self.past:
            return refused(Refusal.VERSION_OPENING, candidates=[])
        position = Position(ApplicationId("app"), Lineage("l1"), version, None).encode().encode()
        tail = b'"partition":%d,"version":%d,"position":"%b"}' % (partition, version, position)
        return SimpleNamespace(view=version, tail=tail)

    def find_many(self, rows: list[bytes], reading: Any, partition: int, _: object) -> list[bytes | None]:
        held = HELD[partition, reading.view]
        return [b'"found":true,' if row in held else None for row in rows]


def test_a_key_that_the_partition_ahead_lost_is_found_at_the_version_of_the_one_behind() -> None:
    reader: Any = Reader()
    lost, found, nowhere = find_everywhere(reader, [b"a", b"b", b"c"], NO_BOUND, {})
    assert not isinstance(lost, Problem)
    assert not isinstance(found, Problem)
    assert not isinstance(nowhere, Problem)
    assert (lost.kind, lost.tail[:26]) == (FOUND, b'"partition":0,"version":3,')
    assert (found.kind, found.tail[:26]) == (FOUND, b'"partition":0,"version":4,')
    assert (nowhere.kind, nowhere.tail[:29]) == (ABSENT, b'"partition":null,"version":3,')
    assert set(reader.pinned) == {3, 4}


def test_while_that_version_is_opened_only_keys_that_are_not_found_wait_for_it() -> None:
    reader: Any = Reader(past=False)
    readings: dict[int, Any] = {}
    lost, found = find_everywhere(reader, [b"a", b"b"], NO_BOUND, readings)
    assert isinstance(lost, Problem)
    assert lost.refusal is Refusal.VERSION_OPENING
    assert not isinstance(found, Problem)
    assert readings[ANY_PARTITION].refusal is Refusal.VERSION_OPENING
    assert not any(isinstance(readings[partition], Problem) for partition in SHOWN)
