"""A store's own bounds, in a router and in a node: for readers that give none, by every way to ask."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import STORE, cluster
from tests.support.cluster.fake_node import found
from tests.support.cluster.served_node import served_node
from tests.support.spark.queries import wait_until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bounds.toml"
    path.write_text("[words]\nmax_lag = 4\n\n[op0]\nmax_lag = 1\n")
    return path


async def test_a_router_sends_the_stores_bound_along_with_every_kind_of_lookup(file: Path) -> None:
    async with cluster(lambda _group, _key: found("a"), store_bounds=file) as known:
        await known.get(f"{STORE}/keys/x")
        await known.get(f"{STORE}/keys/x?max_lag=2")
        await known.get(f"{STORE}/keys/x?max_lag=none")
        await known.http.post(f"{STORE}/lookup", content=orjson.dumps({"keys": [["x"]]}))
        await known.http.post(f"{STORE}/lookup", content=orjson.dumps({"keys": [["x"]], "bounds": {"max_lag": None}}))
        assert [hop.groups[0].bound.max_lag for hop in known.nodes[0].hops] == [4, 2, None, 4, None]
        described = (await known.get(STORE)).json()
        assert described["bounds"] == {"max_lag": 4}


def test_a_node_that_is_asked_itself_keeps_the_stores_bound(tmp_path: Path, file: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, 6))
    with served_node(checkpoint.path, tmp_path / "data", store_bounds=file) as served:
        wait_until(lambda: served.look_up(["word-0"]).status == 200, what="the first answer")
        served.node.hold_at(5)
        checkpoint.add(6, 7, 8)
        wait_until(lambda: served.node.end.version == 8, what="the end")
        assert served.look_up(["word-0"]).problem == "no-acceptable-replica"
        assert served.look_up(["word-0"], bounds="max_lag=3").status == 200
        assert served.look_up(["word-0"], bounds="max_lag=none").status == 200
