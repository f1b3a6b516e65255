"""A stranger who can write to the bus sends absurd messages: reads go on, and nothing of it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.absurd_messages import FORGED, AbsurdMessages
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, TASKS, VERSION, Cluster, cluster
from tests.support.cluster.watch import reading
from tests.support.spark.queries import wait_until

from understudy_node.cluster import heartbeat
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.heartbeat import MemberStatus, heartbeat_of
from understudy_node.node import Node
from understudy_shared.base.plausible import FIRST_SIGHT
from understudy_shared.bus.messages import Heartbeat
from understudy_shared.cluster.view import MAX_NODES, limit_beside


@pytest.fixture
def forger(redis: RedisServer) -> Iterator[AbsurdMessages]:
    made = AbsurdMessages(redis.url, APPLICATION)
    yield made
    made.close()


@pytest.fixture
def known(tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    """Three nodes at rest, and a router that remembers, in folder `r1`."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
    with cluster(checkpoint.path, tmp_path, redis.url, routers=0) as known:
        known.start_router(data_dir=tmp_path / "r1")
        known.wait_to_rest(copies=2, version=VERSION)
        yield known


def assert_well(known: Cluster) -> None:
    """Everybody lives, is ready, and can be numbered further; all is as it was."""
    known.wait_to_rest(copies=2, version=VERSION)
    for each in (known.router, *known.nodes.values()):
        assert each.get("/livez").status == 200
        assert each.not_ready() == ""
    assert max(known.router.order()) < FIRST_SIGHT


def restart_all(known: Cluster, tmp_path: Path) -> None:
    """Every node and the router end, and start with what they remembered."""
    for node_id in list(known.nodes):
        known.stop(node_id)
    for node_id in ("n1", "n2", "n3"):
        known.start(node_id)
    known.restart_router(0, data_dir=tmp_path / "r1")


def test_an_assignment_numbered_beyond_all_others_is_neither_followed_nor_remembered(
    known: Cluster, redis: RedisServer, forger: AbsurdMessages, tmp_path: Path
) -> None:
    before = known.router.order()
    with reading(known.router) as reader:
        forger.assignments()
        reader.wait_for_answers()
        known.end("n3")  # the next assignment is written all the same
        wait_until(lambda: known.router.order() > before, what="the next assignment", limit_s=LIMIT_S)
        known.start("n3")
        assert_well(known)
    restart_all(known, tmp_path)
    assert_well(known)
    redis.flush()
    restart_all(known, tmp_path)
    assert_well(known)


@pytest.mark.full
def test_nobody_is_silenced_by_what_is_said_in_its_name(
    known: Cluster, redis: RedisServer, forger: AbsurdMessages
) -> None:
    with reading(known.router):
        forger.heartbeats()
        assert set(known.router.living()) == {"n1", "n2", "n3"}
        tables = known.router.router.tables
        for node_id, node in known.nodes.items():

            def speaks(node_id: str = node_id, at: int = node.member.heartbeat().sequence) -> bool:
                report = tables.nodes.get(node_id)
                return report is not None and at < report.heartbeat.sequence < 2**30

            wait_until(speaks, what=f"{node_id} to be heard again", limit_s=LIMIT_S)
        assert_well(known)


@pytest.mark.full
def test_thousands_of_members_that_there_are_not_have_bounded_room_and_are_given_nothing(
    known: Cluster, forger: AbsurdMessages
) -> None:
    with reading(known.router):
        forger.members(2 * MAX_NODES)
        tables = known.router.router.tables
        limit = limit_beside(3)
        wait_until(lambda: len(tables.nodes) >= limit, what="the forged members", limit_s=LIMIT_S)
        for _ in range(3):
            forger.heartbeats()
            assert {"n1", "n2", "n3"} <= known.router.living().keys()
            assert len(tables.nodes) <= limit + 3
        new = known.start("n4")
        wait_until(lambda: len(new.holds) > 0, what="a new node to be given something", limit_s=60)
        for node in known.nodes.values():
            assignment = node.member.assignment
            assert assignment is not None
            assert not [each for task in assignment.tasks.values() for each in task.holders if FORGED in each]
        wait_until(lambda: len(tables.nodes) == 4, what="the end of the forged members", limit_s=60)
        assert_well(known)


def test_a_heartbeat_that_nobody_could_read_does_not_end_the_beat(
    known: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node says that it lives, why it says no more, and all of it as soon as it can again."""
    node = known.nodes["n2"]
    with reading(known.router):
        real = heartbeat_of

        def absurd(of: Node, member_id: MemberId, status: MemberStatus, **fields: Any) -> Heartbeat:
            return real(
                of, member_id, status._replace(order=(2**60, 1)) if member_id.node_id == "n2" else status, **fields
            )

        monkeypatch.setattr(heartbeat, "heartbeat_of", absurd)
        wait_until(lambda: "cannot send its heartbeat" in str(node.get("/readyz").body["degraded"]), what="its report")
        assert node.get("/livez").status == 200
        assert node.member.refused["own-heartbeat"] > 0
        assert "n2" in known.router.living()
        monkeypatch.setattr(heartbeat, "heartbeat_of", real)
        wait_until(lambda: node.get("/readyz").body["degraded"] is None, what="a heartbeat", limit_s=LIMIT_S)
        assert_well(known)
