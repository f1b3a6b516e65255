"""What travels together between a router and a node: lookups of one turn, batches, and what is too large for a hop."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import STORE, UNHURRIED, Cluster, cluster, until
from tests.support.cluster.fake_node import Answer, found, problem
from tests.support.cluster.in_process import cluster_node, cluster_router
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy.commands.reading import expanded
from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, MAX_HOP_BYTES, HopGroup, HopKey, HopOutcome


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


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("forms")
    checkpoint = HandmadeCheckpoint(folder / "counts").create().add(1, 2, 3)
    with served_node(checkpoint.path, folder / "data") as served:
        wait_until(lambda: served.get("/readyz").status == 200, what="the node")
        served.wait_for_version(3)
        yield served


node_keys = st.lists(
    st.sampled_from([[word] for word in WORDS])
    | st.sampled_from([["nobody"], [""], [None], 7, {"word": WORDS[0]}, ["a", 1]]),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(keys=node_keys)
def test_a_nodes_batch_says_the_same_in_both_forms_and_of_each_key_what_it_says_of_it_alone(
    node: ServedNode, keys: list[object]
) -> None:
    body = json.dumps({"keys": keys}).encode()
    long = node.post("/v1/stores/op0/lookup", body).body["results"]
    compact = node.post("/v1/stores/op0/lookup?compact=true", body).body
    assert isinstance(long, list)
    assert without_ages(expanded(compact)) == without_ages(long)
    for key, result in zip(keys, long, strict=True):
        alone = node.get(f"/v1/stores/op0/lookup?key={quote(json.dumps(key))}")
        assert without_ages([{"status": alone.status, **alone.body}]) == without_ages([result])


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


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_long_answers_are_packed_unless_a_setting_says_no(
    module_redis: RedisServer, tmp_path: Path, compression: str
) -> None:
    made = HandmadeCheckpoint(tmp_path / "counts").create().add(1)
    settings: dict[str, Any] = {"compression": compression}
    with (
        cluster_node(made.path, tmp_path / "data", module_redis.url, node_id="n1", **settings) as node,
        cluster_router(module_redis.url, **settings) as router,
    ):
        for port in (node.port, router.port):
            headers, body = asked(port, "gzip")
            whole, plain = asked(port, "identity")
            assert "content-encoding" not in whole
            if compression == "gzip":
                assert (headers["content-encoding"], headers["vary"]) == ("gzip", "accept-encoding")
                assert gzip.decompress(body) == plain
            else:
                assert not {"content-encoding", "vary"} & set(headers)
                assert body == plain
