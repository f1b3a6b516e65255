"""Two nodes of three applications over one Redis: each application has a cluster of its own in their processes.

Two of them are in the file; the third announces itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import HEARTBEAT_MS, cluster_router
from tests.support.cluster.served_fleet import ServedFleet, served_fleet, write_applications
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.settings import ClusterNodeSettings
from understudy_shared.bus.base import BusError
from understudy_shared.bus.messages import Announcement
from understudy_shared.bus.redis_sync import SyncPublisher

APPLICATIONS = ("orders", "clicks", "visits")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of two applications, at versions 1 and 2, beside the checkpoint of a third at version 3."""
    for version, name in enumerate(APPLICATIONS, 1):
        HandmadeCheckpoint(tmp_path / name).create().add(*range(1, version + 1))
    return write_applications(tmp_path / "applications.toml", orders=tmp_path / "orders", clicks=tmp_path / "clicks")


def announce(redis_url: str, application_id: str, checkpoint: Path) -> None:
    """Announce a query, as its driver does at its start."""
    publisher = SyncPublisher(redis_url, application_id)
    said = Announcement(application_id=application_id, query_id="q", stores=[], checkpoint=f"file:{checkpoint}")

    def is_said() -> bool:
        try:
            publisher.announce(said, if_absent=True)
        except BusError:  # a busy machine takes longer than a call may
            return False
        return True

    wait_until(is_said, what="the announcement")
    publisher.close()


@contextmanager
def nodes(tmp_path: Path, file: Path, redis_url: str) -> Iterator[list[ServedFleet]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                served_fleet(
                    ClusterNodeSettings(
                        applications=file,
                        checkpoint_root=str(tmp_path),
                        redis=redis_url,
                        node_id=node_id,
                        data_dir=tmp_path / node_id,
                        lag_refresh_ms=HEARTBEAT_MS,
                        shutdown_delay_ms=0,
                        rebalance_delay_ms=0,
                        memory_limit_bytes=0,
                    )
                )
            )
            for node_id in ("n1", "n2")
        ]


def value(reply: Any) -> Any:
    return reply.body.get("value")


def test_each_application_is_a_cluster_of_its_own(tmp_path: Path, file: Path, redis: RedisServer) -> None:
    with nodes(tmp_path, file, redis.url) as (one, other), ExitStack() as stack:
        announce(redis.url, "visits", tmp_path / "visits")
        routers = {each: stack.enter_context(cluster_router(redis.url, application_id=each)) for each in APPLICATIONS}
        for version, application in enumerate(APPLICATIONS, 1):
            router = routers[application]
            wait_until(lambda router=router: router.get("/readyz").status == 200, what="the router")  # type: ignore[misc]
            last = {"count": version, "total": version * 1_000_000}
            for word in WORDS:  # a replica that still restores answers too, with its lag
                wait_until(
                    lambda router=router, word=word, last=last: (
                        value(router.get(f"/v1/stores/op0/keys/{word}")) == last
                    ),  # type: ignore[misc]
                    what=f"the last version of {application}",
                )
        one.wait_for(**dict.fromkeys(APPLICATIONS, "serving"))
        assert [one.application(each)["source"] for each in APPLICATIONS] == ["file", "file", "announced"]
        parts = [node.process.shared.clusters for node in (one, other)]
        loads = [each.load for each in parts if each is not None and each.load is not None]
        wait_until(
            lambda: all(load.of_others(each).held_bytes > 0 for load in loads for each in APPLICATIONS),
            what="what the others of each application bear at each node",
        )
        # One that is removed leaves its cluster, and its folder is free.
        write_applications(file, orders=tmp_path / "orders")
        for node in (one, other):
            node.wait_for(orders="serving", visits="serving")
        wait_until(lambda: not routers["clicks"].living(), what="a cluster without nodes")
        # One that moves all its tasks away goes on for those that are left.
        assert one.post("/admin/v1/drain", {"drain": True}).json() == {
            "node_id": "n1",
            "draining": True,
            "applications": 2,
        }
        for application in ("orders", "visits"):
            router = routers[application]
            wait_until(lambda router=router: router.living()["n1"]["active"] == 0, what="a drained node")  # type: ignore[misc]
            assert value(router.get(f"/v1/stores/op0/keys/{WORDS[0]}")) is not None
