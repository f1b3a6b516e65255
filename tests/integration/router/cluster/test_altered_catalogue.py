"""A catalogue that was altered where it is kept: a router may refuse, it never calls a key absent that is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, TASKS, VERSION, Cluster, cluster
from tests.support.cluster.served_node import Served
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.bus.gossip import Names

NAMES = Names(APPLICATION)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Cluster, RedisServer]]:
    """Two nodes, each with every task, so that no wrong partition is refused for not being held."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        yield known, redis


def alter_catalogue(redis: RedisServer, **fields: object) -> None:
    """Change what the bus has of the only store, and leave its name as it is."""
    keys: Any = redis.command("KEYS", f"{NAMES.catalogues}*")
    (key,) = keys
    kept: Any = redis.command("GET", key)
    head, brace, document = kept.partition(b"{")
    found = orjson.loads(brace + document)
    found["stores"][0].update(fields)
    redis.command("SET", key, head + orjson.dumps(found))


def statuses(of: Served) -> list[int]:
    return [of.get(f"/v1/stores/op0/keys/{word}").status for word in WORDS]


@pytest.mark.parametrize(
    "fields",
    [{"num_hash_columns": 0}, {"partitions": 1}],
    ids=["hash columns", "partitions"],
)
def test_a_router_that_starts_on_an_altered_catalogue_never_calls_an_existing_key_absent(
    running: tuple[Cluster, RedisServer], fields: dict[str, object]
) -> None:
    known, redis = running
    alter_catalogue(redis, **fields)
    router = known.start_router()
    wait_until(lambda: router.not_ready() == "", what="the router to be ready", limit_s=LIMIT_S)
    seen: list[int] = []

    def all_are_found() -> bool:
        seen[:] = statuses(router)
        assert 404 not in seen, seen
        return set(seen) == {200}

    wait_until(all_are_found, what="the router to use the catalogue of the nodes", limit_s=LIMIT_S)
    assert router.get("/v1/stores/op0/keys/absent").body["found"] is False
