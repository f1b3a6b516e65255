"""What travels together between a router and a node: batches, in both forms, and what is too large for a hop."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import STORE, UNHURRIED, Cluster, cluster
from tests.support.cluster.fake_node import Answer, B, found, problem, says
from tests.support.cluster.in_process import cluster_node, cluster_router
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import WORDS

from understudy.commands.reading import expanded
from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, MAX_HOP_BYTES, HopGroup, HopKey, HopOutcome


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


PARTITIONS = 4


def outcome(name: str, key: HopKey) -> HopOutcome:
    """What a node that serves every partition but its last says of a key; a word with an x is absent."""
    tail = b'"partition":%d,"version":7,"lag":{"offset_lag":0},"served_by":{"node_id":"%b"},"position":"us1.a"}\n'
    kind, found = (ABSENT, b'"found":false,') if b"x" in key.row else (FOUND, b'"found":true,"value":{"n":1.5},')
    tail %= key.partition, name.encode()
    return HopOutcome(kind, found, tail)


def holds(name: str, *partitions: int) -> Answer:
    """A node that answers for these partitions only."""

    def answer(_group: HopGroup, key: HopKey) -> HopOutcome:
        if key.partition in partitions:
            return outcome(name, key)
        return problem(ProblemType.NOT_OWNER, f"{name} does not hold {key.partition}")

    return answer


words = st.text("abxyz", min_size=1, max_size=4).map(lambda word: [word])
batches = st.lists(words | st.sampled_from([7, None, {"word": "a"}, {"wort": "a"}, ["a", "b"], [None]]), max_size=30)


def random_batches() -> list[list[object]]:
    """Batches to ask a router for, which lives on a loop of its own."""
    drawn: list[list[object]] = []

    @settings(max_examples=60, database=None)
    @given(batches)
    def draw(keys: list[object]) -> None:
        drawn.append(keys)

    draw()
    return drawn


async def both_forms(known: Cluster, keys: list[object]) -> tuple[dict[str, Any], dict[str, Any]]:
    body = orjson.dumps({"keys": keys})
    long, compact = [await known.http.post(f"{STORE}/lookup{query}", content=body) for query in ("", "?compact=true")]
    assert (long.status_code, compact.status_code) == (200, 200)
    return long.json(), compact.json()


async def test_a_routed_batch_says_the_same_in_both_forms_wherever_its_partitions_are() -> None:
    """Partition 0 is on a node, 1 on another, 2 on both; nobody answers for 3."""
    nodes = holds("a", 0, 2), holds("b", 1, 2)
    async with cluster(*nodes, partitions=PARTITIONS, retry_per_s=10_000, **UNHURRIED) as known:
        served: set[str] = set()
        for keys in random_batches():
            long, compact = await both_forms(known, keys)
            assert without_ages(expanded(compact)) == without_ages(long["results"])
            assert compact["store"] == "words"
            assert len(compact["results"]) == len(keys)
            assert len(compact["reads"]) <= PARTITIONS - 1
            served |= {result.get("type") or result["served_by"]["node_id"] for result in long["results"]}
        assert served == {"a", "b", "bad-key", "no-acceptable-replica"}


def without_ages(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of two requests, without what changes between them."""
    kept = json.loads(json.dumps(results))
    for result in kept:
        for part in (result.get("lag", {}), *result.get("candidates", ())):
            for name in ("time_lag_ms", "report_age_ms"):
                part.pop(name, None)
    return list(kept)


def test_a_record_that_is_damaged_is_a_problem_of_its_own_in_a_batch(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "counts", partitions=1).create().add(1)
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(1)
        generation = served.node.generation
        assert generation is not None
        (reader,) = generation.readers.values()
        view = reader.replicas[0].view
        assert view is not None
        damaged = reader.store.codec.encode((WORDS[1],))
        (changes,) = [tier.changes for tier in view.stores["default"].tiers if damaged in tier.changes]
        assert isinstance(changes, dict)
        changes[damaged] = b"cut"
        body = json.dumps({"keys": [[word] for word in WORDS[:3]]}).encode()
        results = served.post("/v1/stores/op0/lookup", body).body["results"]
        assert isinstance(results, list)
        assert [result["status"] for result in results] == [200, 502, 200]
        assert results[1]["type"] == "store-error"


def asked(port: int, accepted: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a long answer, to a reader who accepts this."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.request("GET", "/openapi.json", headers={"accept-encoding": accepted})
    reply = client.getresponse()
    body = reply.read()
    client.close()
    assert reply.status == 200
    return {name.lower(): value for name, value in reply.getheaders()}, body


def test_long_answers_are_not_packed_where_a_setting_says_so(module_redis: RedisServer, tmp_path: Path) -> None:
    made = HandmadeCheckpoint(tmp_path / "counts").create().add(1)
    settings: dict[str, Any] = {"compression": "none"}
    with (
        cluster_node(made.path, tmp_path / "data", module_redis.url, node_id="n1", **settings) as node,
        cluster_router(module_redis.url, **settings) as router,
    ):
        for port in (node.port, router.port):
            headers, body = asked(port, "gzip")
            whole, plain = asked(port, "identity")
            assert "content-encoding" not in whole
            assert not {"content-encoding", "vary"} & set(headers)
            assert body == plain
