"""A rolling upgrade, and the way back: nodes and routers of this tree and of an earlier commit serve one cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import rests
from tests.support.cluster.releases import LIMIT_S, Member, members, tree_of
from tests.support.cluster.watch import reading
from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until

from understudy_shared.base.ports import free_ports

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

EARLIER = "dc1d7661d2fa5dcd43653a6651ddcc7cc0983b09"
"""The first commit with the hops and catalogues that this tree speaks. Move it on with each minor version."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree_of(EARLIER, tmp_path_factory.mktemp("earlier"))


def wait_to_rest(nodes: list[Member], routers: list[Member], version: int) -> None:
    """Until every router sees every replica at this version, and each process says that it is ready."""
    names = [node.name for node in nodes]
    wait_until(
        lambda: (
            all(each.not_ready() == "" for each in (*nodes, *routers))
            and all(rests(each, names, 2, version) for each in routers)
        ),
        what=f"rest at version {version}",
        limit_s=LIMIT_S,
    )


@pytest.mark.parametrize("way", ["upgrade", "back"])
def test_a_rolling_change_of_release_fails_no_read(way: str, earlier: Path, tmp_path: Path) -> None:
    first, second = (earlier, ROOT) if way == "upgrade" else (ROOT, earlier)
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4).create().add(1)
    with (
        redis_server() as redis,
        members(tmp_path, redis.url, checkpoint.path, free_ports([0] * 4)) as (nodes, routers),
    ):
        for each in (*nodes, *routers):
            each.start(first)
        version = 1
        wait_to_rest(nodes, routers, version)
        with reading(*routers, goes_elsewhere=True) as reader:
            # One of each first, so that both releases talk with each other in both roles.
            for each in (nodes[0], routers[0], nodes[1], routers[1]):
                each.stop()
                version += 1
                checkpoint.add(version)
                each.start(second)
                wait_to_rest(nodes, routers, version)
                reader.wait_for_answers()
        assert reader.answered > 200
