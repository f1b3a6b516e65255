"""Nonsense reaches a cluster: on the bus, from its operators, and from readers. Nothing of it stops a lookup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import (
    APPLICATION,
    LIMIT_S,
    TASKS,
    VERSION,
    Cluster,
    cluster,
    cluster_node,
)
from tests.support.cluster.served_node import Served
from tests.support.cluster.watch import heard_assignments, reading
from tests.support.matrix import in_full
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.bus.gossip import Names
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES

NAMES = Names(APPLICATION)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(folder / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))


@pytest.fixture(scope="module")
def known(folder: Path, checkpoint: HandmadeCheckpoint, module_redis: RedisServer) -> Iterator[Cluster]:
    """Three nodes with two replicas of each task, at rest: the same ones before and after each test."""
    with cluster(checkpoint.path, folder, module_redis.url) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        yield known


def heartbeat(**fields: object) -> bytes:
    """A heartbeat as JSON: one that could be used, but for `fields`."""
    defaults = {
        "format": 1,
        "application_id": APPLICATION,
        "node_id": "stranger",
        "incarnation": "i",
        "sequence": 1,
        "endpoint": {"host": "127.0.0.1", "port": 1},
        "state": "serving",
        "heartbeat_ms": 60_000,
        "lineage": "l",
        "end_version": 1_000_000,
        "end_age_ms": 0,
        "applied": {"version": 1_000_000},
        "term": 1_000_000,
        "epoch": 1_000_000,
    }
    return json.dumps(defaults | fields).encode()


NONSENSE = {
    "malformed": b"{",
    "no object": b"[1, 2]",
    "incomplete": b'{"format": 1, "application_id": "counting"}',
    "mistyped": heartbeat(application_id=7),
    "oversized": heartbeat(more=" " * MAX_MESSAGE_BYTES),
    "foreign application": heartbeat(application_id="another"),
    "future format": heartbeat(format=2),
    "binary": b"\xff\xfe\x00",
}


def refused_messages(of: Served, kind: str) -> float:
    """How many of a kind its metrics say it has left out."""
    for line in of.text("/metrics").splitlines():
        if f'_refused_messages_total{{kind="{kind}"}}' in line:
            return float(line.split()[-1])
    return 0.0


def test_nonsense_on_the_channel_is_counted_and_left_out_and_lookups_go_on(
    known: Cluster, module_redis: RedisServer
) -> None:
    kinds = {
        "heartbeat": b"heartbeat",
        "farewell": b"farewell",
        "assignment": b"assignment",
        "commithint": b"hint",
        "announcement": b"announcement",
    }
    hearers: list[Served] = [known.router, *known.nodes.values()]
    before = {(each, kind): refused_messages(each, kind) for each in hearers for kind in (*kinds, "message")}
    order = known.router.order()
    with reading(known.router) as reader:
        for name in kinds.values():
            for document in NONSENSE.values():
                module_redis.command("PUBLISH", NAMES.channel, name + b"\n" + document)
        unknown = (b"", b"gibberish", b"\n", b"heartbeats\n{}", b"\xff" * 100)
        for message in unknown:
            module_redis.command("PUBLISH", NAMES.channel, message)
        for each in hearers:
            expected = before[each, "message"] + len(unknown)
            wait_until(
                lambda each=each, expected=expected: refused_messages(each, "message") == expected,  # type: ignore[misc]
                what="all of it counted",
                limit_s=LIMIT_S,
            )
            for kind in kinds:
                assert refused_messages(each, kind) == before[each, kind] + len(NONSENSE), (each, kind)
        reader.wait_for_answers()
    assert_well(known)
    assert known.router.order() == order


def assert_well(known: Cluster) -> None:
    """All members live and are ready, no stranger was let in, and the assignment is as it was."""
    for each in (known.router, *known.nodes.values()):
        assert each.get("/livez").status == 200
        assert each.not_ready() == ""
    known.wait_to_rest(copies=2, version=VERSION)
    assert set(known.router.living()) == set(known.nodes)


@pytest.mark.full
def test_of_two_nodes_that_took_one_id_while_redis_was_away_one_is_unready_until_the_other_leaves(
    tmp_path: Path,
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(1)
    with redis_server() as own_redis, cluster(checkpoint.path, tmp_path, own_redis.url) as known:
        known.wait_to_rest(copies=2, version=1)
        with reading(known.router) as reader, ExitStack() as stack:
            own_redis.kill()
            second = stack.enter_context(
                cluster_node(checkpoint.path, tmp_path / "second", own_redis.url, node_id="n1")
            )
            own_redis.start()
            twins = [known.nodes["n1"], second]
            rivals = "another process of the cluster uses node id n1"
            wait_until(lambda: any(rivals in twin.not_ready() for twin in twins), what="a loser", limit_s=LIMIT_S)
            wait_until(lambda: not all(twin.not_ready() for twin in twins), what="a winner", limit_s=LIMIT_S)
            (loser,) = [twin for twin in twins if rivals in twin.not_ready()]
            assert loser.get("/livez").status == 200
            assert loser.member.heartbeat().state == "failed"
            known.wait_to_rest(copies=2, version=1)
            reader.wait_for_answers()
            if loser is second:
                known.stop("n1")
                known.nodes["n1"] = second
            else:
                stack.close()
            wait_until(lambda: loser.not_ready() == "", what="the id to be free", limit_s=LIMIT_S)
            known.wait_to_rest(copies=2, version=1)
            if loser is second:
                del known.nodes["n1"]


@pytest.mark.parametrize("stranger", in_full(("n0", "n9"), if_in=("n9",)))
def test_a_node_on_another_checkpoint_is_outvoted_gets_no_tasks_and_answers_nobody(
    tmp_path: Path, stranger: str
) -> None:
    common = HandmadeCheckpoint(tmp_path / "common", partitions=TASKS).create().add(1)
    other = HandmadeCheckpoint(tmp_path / "other", partitions=TASKS).create().add(1, 2)
    other.write("metadata", b'{"id":"99999999-2222-4333-8444-555555555555"}')
    with redis_server() as own_redis, cluster(common.path, tmp_path, own_redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=1)
        with (
            reading(known.router) as reader,
            heard_assignments(own_redis.url) as heard,
            cluster_node(other.path, tmp_path / stranger, own_redis.url, node_id=stranger) as outvoted,
        ):
            wait_until(lambda: "others of application" in outvoted.not_ready(), what="the vote", limit_s=LIMIT_S)
            assert outvoted.not_ready().startswith(f"this node follows {other.path} (lineage 99999999-")
            assert f"follow {common.path} (lineage 11111111-" in outvoted.not_ready()
            wait_until(lambda: stranger in known.router.living(), what="word of it", limit_s=LIMIT_S)
            wait_until(lambda: known.router.living()[stranger]["state"] == "failed", what="its state", limit_s=LIMIT_S)
            for word in WORDS:
                assert outvoted.look_up([word]).problem == "not-owner"
            common.add(2)
            wait_until(lambda: shows(known, 2), what="the next version", limit_s=LIMIT_S)
            reader.wait_for_answers()
            assert outvoted.holds == set()
            report = known.router.living()[stranger]
            assert (report["active"], report["standby"], report["warmup"]) == (0, 0, 0)
            assert known.router.lag()["end_offset_position"] == 2
        known.wait_to_rest(copies=2, version=2)
    assert all(stranger not in duty.holders for assignment in heard for duty in assignment.tasks.values())


def shows(known: Cluster, version: int) -> bool:
    """Whether every replica does."""
    return all(part["current_offset_position"] == version for part in known.router.partitions())
