"""A batch says the same in its long and its compact form, and of each key what a lookup of it alone says.

At a router: partitions on different nodes, of which some fail. At a node: a real one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import STORE, UNHURRIED, Cluster, cluster
from tests.support.cluster.fake_node import Answer, problem
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy.commands.reading import expanded
from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, HopGroup, HopKey, HopOutcome

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
