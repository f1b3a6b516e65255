"""What travels together between a router and a node: lookups of one turn, batches, and what is too large for a hop."""

from __future__ import annotations

import asyncio

import orjson
from tests.support.cluster.fake_cluster import STORE, cluster, until
from tests.support.cluster.fake_node import Answer, found, problem

from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.lookup.hop import MAX_HOP_BYTES, HopGroup, HopKey, HopOutcome


def says(outcome: HopOutcome) -> Answer:
    """A node that answers every key so."""
    return lambda _group, _key: outcome


A, B = says(found("a")), says(found("b"))


async def test_long_keys_of_one_batch_travel_in_hops_of_which_each_fits() -> None:
    """A part of them that one node refuses is asked of another, while the rest of them was on its way to the first."""

    def refuses_some(_group: HopGroup, key: HopKey) -> HopOutcome:
        return problem(ProblemType.STORE_ERROR) if b"refused" in key.row else found("a")

    words = [f"{'refused' if at < 60 else 'taken'}-{at}-{'x' * 60_000}" for at in range(120)]
    async with cluster(refuses_some, B, hop_timeout_ms=20_000, deadline_ms=60_000) as known:
        body = orjson.dumps({"keys": [[word] for word in words]})
        reply = await known.http.post(f"{STORE}/lookup", content=body)
        results = reply.json()["results"]
        assert [result["status"] for result in results] == [200] * len(words)
        assert [result["value"]["by"] for result in results] == ["b"] * 60 + ["a"] * 60
        assert len(known.nodes[0].hops) > 1


async def test_lookups_of_one_turn_for_one_node_travel_as_one_request() -> None:
    async with cluster(A, partitions=4) as known:
        await known.get(f"{STORE}/keys/first")
        replies = await asyncio.gather(*(known.get(f"{STORE}/keys/{number}?max_lag=3") for number in range(40)))
        assert known.nodes[0].keys == [1, 40]
        assert [len(hop.groups) for hop in known.nodes[0].hops] == [1, 1]
        assert [reply.json()["key"]["word"] for reply in replies] == [str(number) for number in range(40)]


async def test_what_comes_while_all_connections_are_busy_travels_with_the_next_hop() -> None:
    async with cluster(A, hop_timeout_ms=10_000, deadline_ms=30_000) as known:
        node = known.nodes[0]
        node.held = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            readers = []
            for number in range(30):
                readers.append(group.create_task(known.get(f"{STORE}/keys/{number}")))
                await asyncio.sleep(0.002)
            client = known.router.clients._newest["a"]
            await until(lambda: len(node.keys) == 2 and sum(node.keys) + client._waiting.keys == 30)
            busy = len(node.keys)
            node.held.set()
        assert all(reader.result().status_code == 200 for reader in readers)
        assert node.keys[busy:] == [30 - sum(node.keys[:busy])]
        assert node.accepted == busy


async def test_only_the_partitions_that_one_node_refuses_are_asked_of_the_next() -> None:
    def answer(_group: HopGroup, key: HopKey) -> HopOutcome:
        return problem(ProblemType.NOT_OWNER) if key.partition % 2 else found("a")

    async with cluster(answer, B, partitions=4) as known:
        reply = await known.http.post(f"{STORE}/lookup", json={"keys": [[str(number)] for number in range(200)]})
        codec = known.router.stores().get("words").codec
        odd = [codec.partition((str(number),), 4) % 2 for number in range(200)]
        assert [each["value"]["by"] for each in reply.json()["results"]] == ["b" if flag else "a" for flag in odd]
        asked = [[keys for keys in node.keys if keys] for node in known.nodes]  # a slow node may be probed as well
        assert asked == [[200], [sum(odd)]]


async def test_a_batch_of_values_too_large_for_one_reply_is_asked_for_in_parts() -> None:
    large = HopOutcome(0, b'"found":true,"value":"%b",' % (b"v" * (MAX_HOP_BYTES // 5)), b'"version":7}\n')
    async with cluster(says(large), hop_timeout_ms=20_000, deadline_ms=60_000) as known:
        reply = await known.http.post(f"{STORE}/lookup", json={"keys": [[str(number)] for number in range(8)]})
        assert [each["status"] for each in reply.json()["results"]] == [200] * 8
        replies = await asyncio.gather(*(known.get(f"{STORE}/keys/{number}") for number in range(8)))
        assert [each.status_code for each in replies] == [200] * 8
