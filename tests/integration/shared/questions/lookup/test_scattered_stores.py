"""Stores whose keys do not lie where the hash says: each read finds them, at a node and through a router.

The checkpoint is handmade, so that keys are in partitions of the test's choice, one of them in two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade_scattered import LOST, TWICE, ScatteredCheckpoint, scattered_checkpoint
from tests.support.cluster.in_process import Cluster, cluster
from tests.support.cluster.served_node import Served, served_node
from tests.support.services.watches import Watcher
from tests.support.spark.queries import wait_until

from understudy import AmbiguousKeyError, Client

PARTITIONS, VERSION = 4, 3


@pytest.fixture(params=["node", "router"])
def known(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer
) -> Iterator[tuple[ScatteredCheckpoint, Served]]:
    """A checkpoint of three versions, and a node that holds all of it, or a router in front of two that do not."""
    checkpoint = scattered_checkpoint(tmp_path / "checkpoint", partitions=PARTITIONS)
    checkpoint.add(1, 2, VERSION)
    if request.param == "node":
        with served_node(checkpoint.path, tmp_path / "data") as served:
            served.wait_for_version(VERSION)
            yield checkpoint, served
    else:
        with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, num_standby_replicas=0) as found:
            found.wait_to_rest(copies=1, version=VERSION)
            yield checkpoint, found.router


def test_every_key_is_found_in_the_partition_that_has_it_by_each_way_to_read(
    known: tuple[ScatteredCheckpoint, Served],
) -> None:
    checkpoint, served = known
    counts = checkpoint.counts(VERSION)
    words = list(counts)
    expected = {word: (200, count, checkpoint.partition_of(word)) for word, count in counts.items()}
    one_by_one = {word: served.look_up([word]) for word in words}
    assert {word: _said({"status": reply.status, **reply.body}) for word, reply in one_by_one.items()} == expected
    batch = served.look_up_all([[word] for word in words])
    assert {word: _said(result) for word, result in zip(words, batch, strict=True)} == expected
    for word in words[:3]:
        history: Any = served.get(f"/v1/stores/op0/history/{word}?from=1").body
        versions = [(each["version"], each["value"]["count"]) for each in history["versions"] if each["found"]]
        assert versions[-1] == (VERSION, counts[word])
        assert (history["partition"], history["next_from"]) == (checkpoint.partition_of(word), None)
        scanned: Any = served.post("/v1/stores/op0/scan", json.dumps({"prefix": [word]}).encode()).body
        assert [(row["key"]["word"], row["value"]["count"]) for row in scanned["rows"]] == [(word, counts[word])]
        counted = served.get(f"/v1/stores/op0/count?prefix={quote(json.dumps([word]))}")
        assert (counted.status, counted.body["count"]) == (200, 1)
    several = served.post("/v1/read", json.dumps({"reads": [{"store": "op0", "keys": [[words[0]]]}]}).encode())
    results: Any = several.body["reads"]
    assert _said(results[0]["results"][0]) == expected[words[0]]
    stores: Any = served.get("/v1/stores").body["stores"]
    assert [each["placement"] for each in stores] == ["scattered"]


def test_a_key_that_two_partitions_have_is_a_problem_that_names_them(known: tuple[ScatteredCheckpoint, Served]) -> None:
    _, served = known
    (in_a_batch,) = served.look_up_all([[TWICE]])
    with Watcher(served.port, f"op0/watch/{TWICE}") as watched:
        watch = watched.problem
    found = [
        (reply.status, reply.problem, reply.body["partitions"])
        for reply in (served.look_up([TWICE]), served.get(f"/v1/stores/op0/history/{TWICE}"))
    ]
    assert found == [(409, "ambiguous-key", [0, PARTITIONS - 1])] * 2
    assert (in_a_batch["type"], in_a_batch["partitions"], watch) == (
        "ambiguous-key",
        [0, PARTITIONS - 1],
        "ambiguous-key",
    )
    scanned: Any = served.post("/v1/stores/op0/scan", json.dumps({"prefix": [TWICE]}).encode()).body
    assert sorted(row["value"]["count"] for row in scanned["rows"]) == [VERSION, VERSION + PARTITIONS - 1]


def test_a_watch_tells_each_version_of_a_key_and_goes_on_behind_a_position(
    known: tuple[ScatteredCheckpoint, Served],
) -> None:
    checkpoint, served = known
    word = next(iter(checkpoint.counts(VERSION)))
    body = {"keys": [[word], ["absent"]]}
    with Watcher(served.port, "op0/watch", body) as watched:
        first, second = watched.take(), watched.take()
        told = {event.data["key"]["word"]: event for event in (first, second)}
        assert told[word].counted == checkpoint.counts(VERSION)[word]
        assert (told["absent"].data["found"], told["absent"].data["partition"]) == (False, None)
        checkpoint.add(VERSION + 1)
        changed = watched.take()
        assert (changed.kind, changed.version, changed.counted) == ("value", VERSION + 1, told[word].counted + 1)
    wait_until(lambda: served.look_up([word]).body["version"] == VERSION + 1, what="the version everywhere")
    position = told[word].data["position"]
    with Watcher(served.port, "op0/watch", body, last_event_id=position) as resumed:
        missed = resumed.take()
        assert (missed.kind, missed.version, missed.counted) == ("value", VERSION + 1, changed.counted)
        checkpoint.add(VERSION + 2)
        later = resumed.take()
        assert (later.version, later.counted) == (VERSION + 2, changed.counted + 1)
    with Watcher(served.port, f"op0/watch/{TWICE}", last_event_id=position) as ambiguous:
        assert ambiguous.problem == "ambiguous-key"


def test_a_bound_that_a_partition_cannot_keep_is_the_answer_and_names_the_partition(
    known: tuple[ScatteredCheckpoint, Served],
) -> None:
    checkpoint, served = known
    word = next(iter(checkpoint.counts(VERSION)))
    for key in (word, "absent"):
        reply = served.look_up([key], bounds=f"version={VERSION + 5}&wait_ms=0")
        assert (reply.status, reply.problem) == (503, "no-acceptable-replica")
        assert reply.body["partition"] in range(PARTITIONS)
        assert f"partition {reply.body['partition']}" in str(reply.body["where"])


def test_a_key_that_one_partition_lost_while_another_is_behind_is_not_called_absent(
    tmp_path: Path, redis: RedisServer
) -> None:
    """The partition ahead lacks it at version 4, the others at version 3: at version 3 it is there."""
    checkpoint = scattered_checkpoint(tmp_path / "checkpoint", partitions=PARTITIONS)
    checkpoint.add(1, 2)
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, num_standby_replicas=0) as known:
        known.wait_to_rest(copies=1, version=2)
        asked = known.router.explain("a")["asked"]
        ahead = next(each["partition"] for each in asked if each["choice"][0]["node_id"] == "n2")
        checkpoint.lost_in.add(ahead)
        checkpoint.add(VERSION)
        wait_until(lambda: known.router.look_up([LOST]).body.get("version") == VERSION, what="the key")
        known.nodes["n1"].node.hold_at(VERSION)
        checkpoint.add(VERSION + 1)
        there = next(word for word in checkpoint.counts(VERSION) if checkpoint.partition_of(word) == ahead)
        wait_until(lambda: known.router.look_up([there]).body["version"] == VERSION + 1, what="a partition ahead")
        (batched,) = known.router.look_up_all([[LOST]])
        for reply in (known.router.look_up([LOST]).body, batched):
            assert (reply["found"], reply["version"], reply["partition"]) == (True, VERSION, ahead)
        known.nodes["n1"].node.hold_at(None)
        wait_until(lambda: known.router.look_up([LOST]).status == 404, what="version 4 everywhere")


@pytest.fixture
def halved(tmp_path: Path, redis: RedisServer) -> Iterator[tuple[ScatteredCheckpoint, Cluster]]:
    """Two nodes, each with one half of the partitions."""
    checkpoint = scattered_checkpoint(tmp_path / "checkpoint", partitions=PARTITIONS)
    checkpoint.add(1, 2, VERSION)
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, num_standby_replicas=0) as found:
        found.wait_to_rest(copies=1, version=VERSION)
        yield checkpoint, found


def test_a_node_that_lacks_partitions_refuses_each_key_also_one_that_it_has(
    halved: tuple[ScatteredCheckpoint, Cluster],
) -> None:
    checkpoint, known = halved
    node = known.nodes["n1"]
    for word in (*checkpoint.counts(VERSION), "absent"):
        found = [
            node.look_up([word]),
            node.get(f"/v1/stores/op0/history/{word}"),
            node.post("/v1/stores/op0/scan", json.dumps({"prefix": [word]}).encode()),
        ]
        assert [(reply.status, reply.problem) for reply in found] == [(421, "not-owner")] * 3
        (result,) = node.look_up_all([[word]])
        assert (result["status"], result["type"]) == (421, "not-owner")
        with Watcher(node.port, f"op0/watch/{word}") as watched:
            assert watched.problem == "not-owner"


def test_the_metadata_of_a_key_has_each_partition_and_direct_clients_ask_routers(
    halved: tuple[ScatteredCheckpoint, Cluster],
) -> None:
    checkpoint, known = halved
    word = next(iter(checkpoint.counts(VERSION)))
    explained = known.router.explain(word)
    assert (explained["placement"], explained["partition"], explained["choice"]) == ("scattered", None, [])
    assert [each["partition"] for each in explained["asked"]] == list(range(PARTITIONS))
    assert {each["choice"][0]["node_id"] for each in explained["asked"]} == {"n1", "n2"}
    assert known.router.get("/v1/stores/op0/metadata").body["placement"] == "scattered"
    with Client(f"http://127.0.0.1:{known.router.port}", routing="direct") as client:
        store = client.store("op0")
        wait_until(lambda: bool(store.get(word)) and _is_known(client), what="metadata")
        assert [store.get(each).partition for each in (word, "absent")] == [checkpoint.partition_of(word), None]
        with pytest.raises(AmbiguousKeyError) as raised:
            store.get(TWICE)
        assert raised.value.partitions == [0, PARTITIONS - 1]
        counts = client.routing_counts
        assert counts is not None
        assert counts.direct == 0


def _is_known(client: Client) -> bool:
    counts = client.routing_counts
    return counts is not None and counts.routed.get("scattered", 0) > 0


def _said(answer: dict[str, Any]) -> tuple[object, object, object]:
    value = answer.get("value")
    return answer["status"], None if value is None else value["count"], answer["partition"]
