"""The last replica of everything, cut off from the checkpoint: it answers reads without a lag bound, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import LIMIT_S, Cluster, cluster, cluster_router
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

END = 5
EXPIRY_MS = 400
KEY = [WORDS[0]]


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory, module_redis: RedisServer) -> Iterator[Cluster]:
    """Two of three nodes died, and the third cannot see the checkpoint any more."""
    folder = tmp_path_factory.mktemp("survivor")
    checkpoint = HandmadeCheckpoint(folder / "real").create().add(*range(1, END + 1))
    seen = folder / "checkpoint"
    seen.symlink_to(checkpoint.path)
    settings = {"num_standby_replicas": 2, "end_expiry_ms": EXPIRY_MS}
    with (
        cluster(seen, folder, module_redis.url, routers=0, **settings) as known,
        cluster_router(module_redis.url, end_expiry_ms=EXPIRY_MS) as router,
    ):
        known.routers.append(router)
        known.wait_to_rest(copies=3, version=END)
        for node_id in ("n1", "n2"):
            known.end(node_id)
        wait_until(lambda: set(router.living()) == {"n3"}, what="the others' end", limit_s=LIMIT_S)
        seen.unlink()
        wait_until(lambda: lag(known)["offset_lag"] is None, what="unknown lag", limit_s=LIMIT_S)
        yield known


def lag(known: Cluster, bounds: str = "") -> dict[str, Any]:
    reply = known.router.look_up(KEY, bounds=bounds)
    assert reply.status == 200, reply
    body: dict[str, Any] = reply.body
    lag_info: dict[str, Any] = body["lag"]
    return lag_info


def test_a_lone_survivor_of_unknown_lag_answers_who_gave_no_lag_bound_and_marks_it(survivor: Cluster) -> None:
    reply = survivor.router.look_up(KEY)
    assert (reply.status, reply.body["found"], reply.body["version"]) == (200, True, END)
    value: Any = reply.body["value"]
    assert value["count"] == END
    lag_info: Any = reply.body["lag"]
    assert (lag_info["offset_lag"], lag_info["time_lag_ms"], lag_info["current_offset_position"]) == (None, None, END)
    assert reply.body["committed_at"] is not None


@pytest.mark.parametrize("bound", ["max_lag=0", "max_lag=1000000", "max_staleness_ms=3600000"])
def test_a_lone_survivor_of_unknown_lag_refuses_every_lag_bound_and_everybody_is_named_with_the_reason(
    survivor: Cluster, bound: str
) -> None:
    reply = survivor.router.look_up(KEY, bounds=bound)
    assert (reply.status, reply.problem) == (503, "no-acceptable-replica")
    candidates: Any = reply.body["candidates"]
    reasons = {each["node_id"]: each["reason"] for each in candidates}
    assert reasons.pop("n3") == "lag-unknown"
    assert set(reasons.values()) <= {"dead"}  # those that the assignment still names


def test_a_reader_may_accept_unknown_lag_under_a_lag_bound(survivor: Cluster) -> None:
    assert lag(survivor, "max_lag=0&unknown_lag=serve")["offset_lag"] is None
