"""Every router reads the version that another one leased, also after routers and nodes were restarted."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import TASKS, VERSION, cluster
from tests.support.cluster.served_node import Reply, Served
from tests.support.oracle.scanned import scanned
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.questions.lease import service as snapshots
from understudy_shared.reads.tokens import decode_position


def asked(served: Served, **members: object) -> Reply:
    return served.post("/v1/snapshots", json.dumps(members).encode())


def lease(served: Served, **members: object) -> dict[str, Any]:
    reply = asked(served, **members)
    assert reply.status == 201, reply
    return reply.body


def listed(served: Served) -> list[dict[str, Any]]:
    found: Any = served.get("/admin/v1/snapshots").body["snapshots"]
    return list(found)


def is_read(served: Served, token: str, version: int) -> bool:
    """Whether every word is read at that version. Another version of an answer fails the test."""
    replies = [served.get(f"/v1/stores/op0/keys/{quote(word)}?snapshot={token}") for word in WORDS]
    for reply in replies:
        if reply.status == 200:
            value: Any = reply.body["value"]
            assert (reply.body["version"], value["count"]) == (version, version), reply
    return all(reply.status == 200 for reply in replies)


def test_a_lease_of_one_router_is_used_at_another_and_after_all_were_restarted(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    """Q67."""
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, routers=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        held = lease(known.routers[0], ttl_s=900)
        token = held["snapshot"]
        checkpoint.add(*range(VERSION + 1, VERSION + 6))
        known.wait_to_rest(copies=2, version=VERSION + 5)
        assert is_read(known.routers[1], token, VERSION)
        assert [each.node.past.opened for each in known.nodes.values()] == [0, 0], "each task's version is kept"
        (entry,) = listed(known.routers[1])
        assert (entry["version"], entry["nodes"], entry["tasks"]) == (VERSION, 2, 2 * TASKS)
        for index in range(2):
            known.restart_router(index)
        for node_id in ("n1", "n2"):
            known.stop(node_id)
            known.start(node_id)
        known.wait_to_rest(copies=2, version=VERSION + 5)
        assert listed(known.router) == [], "a node forgets its leases"
        wait_until(lambda: is_read(known.routers[1], token, VERSION), what="its version to be opened again")
        found = {row["key"]["word"]: row["value"]["count"] for row in scanned(known.router, "op0", snapshot=token)}
        assert found == checkpoint.counts(VERSION)
        wait_until(lambda: [each["nodes"] for each in listed(known.router)] == [2], what="the use to renew the lease")
        assert known.router.delete(f"/v1/snapshots/{token}").status == 204
        assert listed(known.routers[1]) == []


@pytest.mark.full
def test_a_task_that_is_behind_holds_the_version_back_and_is_named(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    """Q68."""
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, num_standby_replicas=0) as known:
        known.wait_to_rest(copies=1, version=VERSION)
        late = known.nodes["n2"]
        late.node.hold_at(VERSION)
        checkpoint.add(VERSION + 1)
        known.nodes["n1"].wait_for_version(VERSION + 1, partitions=len(known.nodes["n1"].holds))
        held = lease(known.router, wait_ms=100)
        assert (held["version"], held["newest_version"]) == (VERSION, VERSION + 1)
        behind = held["held_back_by"]
        assert (behind["store"], behind["version"]) == ("op0", VERSION)
        assert f"0_{behind['partition']}" in late.holds
        assert is_read(known.router, held["snapshot"], VERSION)
        newer = known.nodes["n1"].get(f"/v1/stores/op0/keys/{quote(word_of(known.nodes['n1']))}").body["position"]
        refused = asked(known.router, min_position=newer, wait_ms=100)
        assert (refused.status, refused.problem) == (503, "no-acceptable-replica")
        assert f"partition {behind['partition']} of op0 shows version {VERSION}" in refused.text
        with ThreadPoolExecutor() as readers:
            waiting = readers.submit(lease, known.router, min_position=newer, wait_ms=20_000)
            late.node.hold_at(None)
            assert waiting.result()["version"] == VERSION + 1
        known.end("n2")
        wait_until(
            lambda: asked(known.router, stores=["op0"]).status in {201, 503}, what="the router to see that it is gone"
        )


def word_of(served: Served) -> str:
    """A word that this node has."""
    return next(word for word in WORDS if served.get(f"/v1/stores/op0/keys/{quote(word)}").status == 200)


@pytest.mark.full
@pytest.mark.parametrize("wanted", [1000])
def test_many_leases_share_few_versions_and_those_above_the_limit_are_told_when_to_retry(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    """Q66: the nodes have room for three of ten that are asked for."""
    room = wanted * 3 // 10
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, lag_refresh_ms=1000) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        for node in known.nodes.values():
            monkeypatch.setattr(node.node.leases, "_max_leases", room)
        with ThreadPoolExecutor(8) as readers:
            replies = list(readers.map(lambda _: asked(known.router, ttl_s=900), range(wanted)))
        granted = [reply for reply in replies if reply.status == 201]
        assert {reply.status for reply in replies} == {201, 429}
        assert len(granted) == room
        assert {reply.body["version"] for reply in granted} == {VERSION}
        for node in known.nodes.values():
            assert len(node.node.leases) == room, "one that another node refuses has ended at this one"
            assert len(node.node.pinned) == TASKS, "many cost one"
        refused = next(reply for reply in replies if reply.status == 429)
        assert refused.body["retry_after_s"] == 60
        assert len(listed(known.router)) == room
        assert is_read(known.router, str(granted[0].body["snapshot"]), VERSION)


def test_more_requests_at_a_time_than_are_granted_or_wait_are_refused(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_WAITING", 0)
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=VERSION)
        assert asked(known.router).problem == "overloaded"


def test_what_cannot_be_leased_is_refused_by_a_router_as_by_a_node(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        position = known.router.get(f"/v1/stores/op0/keys/{quote(WORDS[0])}?version=2").body["position"]
        assert lease(known.router, snapshot=position)["version"] == 2
        assert lease(known.router, version=1)["version"] == 1
        for members in (
            {"version": VERSION + 1, "wait_ms": 0},
            {"version": 0},
            {"version": -1},
            {"stores": ["elsewhere"]},
            {"ttl_s": 0},
            {"at": 0},
        ):
            of_router, of_node = asked(known.router, **members), asked(known.nodes["n1"], **members)
            assert (of_router.status, of_router.problem) == (of_node.status, of_node.problem), members


def test_a_lease_of_a_query_that_was_created_anew_is_refused_at_routers(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    """Q69."""
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        held = lease(known.router, ttl_s=900)
        checkpoint.write("metadata", b'{"id":"99999999-2222-4333-8444-555555555555"}')

        def refused() -> bool:
            reply = known.router.get(f"/v1/stores/op0/keys/{quote(WORDS[0])}?snapshot={held['snapshot']}")
            if reply.status == 200:
                assert decode_position(str(reply.body["position"])).lineage == held["lineage"], reply
            return reply.status == 409

        wait_until(refused, what="the router to see the other query")
        known.wait_to_rest(copies=2, version=VERSION)
        assert refused()
        for members in ({"snapshot": held["snapshot"]}, {"min_position": held["position"]}):
            reply = asked(known.router, **members)
            assert (reply.status, reply.problem) == (409, "lineage-changed"), reply
        assert listed(known.router) == []
