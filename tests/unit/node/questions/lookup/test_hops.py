"""How a hop treats the loop that it runs on, later assignments, and damage of a single key."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.spark.counting_query import WORDS

from understudy_node.node import Node
from understudy_node.questions.lookup import hop as hop_module
from understudy_node.questions.lookup.hop import HOP_SLICE_KEYS, Hops
from understudy_node.questions.lookup.reads import Reads
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import Role, StoreName
from understudy_shared.questions.lookup.hop import (
    FOUND,
    HOP_SLICE_GROUPS,
    MAX_HOP_KEYS,
    PATH,
    PROBLEM,
    HopGroup,
    HopKey,
    HopReply,
    HopRequest,
    decode_reply,
    encode_request,
)
from understudy_shared.reads.bound_parsing import StoreBounds
from understudy_shared.reads.bounds import NO_BOUND, Bound


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

    await hops({"type": "http", "raw_path": PATH.encode(), "method": "POST"}, receive, send)
    return sent


def hops_of(node: Node, order: tuple[int, int] | None = None) -> Hops:
    """The end of a node that follows the assignment `order`; None for one outside of a cluster."""
    current_order = None if order is None else (lambda: order)
    return Hops(nowhere, Reads(node, StoreBounds()), order=current_order, max_in_flight=4)


async def test_a_long_hop_gives_the_loop_up_between_slices(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1")
        hop = asyncio.ensure_future(answered(hops_of(node), request_of(node, 10 * HOP_SLICE_KEYS)))
        turns = 0
        while not hop.done():
            turns += 1
            await asyncio.sleep(0)
        assert len(hop.result().outcomes) == 10 * HOP_SLICE_KEYS
        assert turns >= 10


async def test_a_hop_of_many_groups_gives_the_loop_up_while_it_is_decoded_and_while_it_is_answered(
    tmp_path: Path,
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1")
        one = request_of(node, 1)
        (group,) = one.groups
        for each, kind in ((group, FOUND), (group._replace(lineage="another"), PROBLEM)):
            many = one._replace(groups=[each] * MAX_HOP_KEYS)
            hop = asyncio.ensure_future(answered(hops_of(node), many))
            turns = 0
            while not hop.done():
                turns += 1
                await asyncio.sleep(0)
            assert {outcome.kind for outcome in hop.result().outcomes} == {kind}
            assert turns >= MAX_HOP_KEYS // HOP_SLICE_GROUPS + MAX_HOP_KEYS // HOP_SLICE_KEYS


async def test_a_hop_whose_deadline_passes_while_it_is_decoded_is_refused_as_a_whole(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1")
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


async def test_a_reader_that_knows_of_a_later_assignment_and_requires_the_active_is_refused(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data", node_id="n1") as node:
        wait_to_hold(node, "0_0", "0_1")
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
