"""A catalogue that cannot be used: the last good one stays, and nothing dies of it. One that was altered where it is
kept: a router may refuse, it never calls a key absent that is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.bus.documents import enveloped, eventually
from tests.support.bus.local_bus import LocalBus
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION as COUNTING
from tests.support.cluster.in_process import LIMIT_S, TASKS, VERSION, Cluster, cluster
from tests.support.cluster.served_node import Served
from tests.support.router.tables import APPLICATION, TASK, assigned, beat, task
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_router.cluster import catalogue as module
from understudy_router.cluster.catalogue import Stores, stores_of
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import Gossip, Names, digest_of
from understudy_shared.bus.messages import Catalogue, CatalogueStore

SCHEMA = '{"type":"struct","fields":[{"name":"c0","type":"string","nullable":true,"metadata":{}}]}'
DEEP = SCHEMA.replace('"string"', '{"type":"array","containsNull":true,"elementType":' * 900 + '"string"' + "}" * 900)


def catalogue(schema: str, *names: str) -> Catalogue:
    store = CatalogueStore(
        store="s", operator_id=0, operator="o", key_schema=schema, key_names=list(names), partitions=1, value=[]
    )
    return Catalogue(application_id=APPLICATION, lineage="l1", partitions=1, stores=[store])


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds, what="it")


@pytest.mark.parametrize(
    "bad", [catalogue(SCHEMA, "a", "b"), catalogue(SCHEMA), catalogue(DEEP, "c0")], ids=["names", "no names", "deep"]
)
async def test_a_bad_catalogue_leaves_the_last_good_one_in_use_and_is_reported(
    bad: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def counted(each: Catalogue, digest: str) -> Stores:
        compiled.append(digest)
        return stores_of(each, digest)

    monkeypatch.setattr(module, "stores_of", counted)
    bus = LocalBus()
    gossip = Gossip(bus, APPLICATION)
    good = catalogue(SCHEMA, "c0")
    for each in (good, bad):
        await gossip.write_catalogue(digest_of(each), each)
    settings = RouterSettings(redis="redis://unused", application_id=APPLICATION)
    router = Router(settings, bus, host=HostInfo("127.0.0.1", 1), clock=SystemClock())
    router.start()
    try:
        await until(lambda: router.watcher.bus_lost_why is None)
        await bus.publish(gossip.names.channel, enveloped(assigned({TASK: task("a")}, lineage="l1")))
        for sequence, each in enumerate((good, bad, good)):
            digest = digest_of(each)
            message = beat("a", sequence=sequence, lineage="l1", catalogue=digest, heartbeat_ms=60_000)
            await bus.publish(gossip.names.channel, enveloped(message))
            if each is good:
                await until(
                    lambda: router.watcher.catalogue.stores is not None and not router.watcher.catalogue.unusable
                )
            else:
                await until(lambda: bool(router.watcher.catalogue.unusable))
                assert "cannot be used" in str(router.degraded)
                for _ in range(50):  # it is asked for again and again, and not compiled again
                    await asyncio.sleep(0.01)
            assert router.stores().digest == digest_of(good)
            assert router.dead is None
        assert compiled.count(digest_of(bad)) == 1
        assert router.gossip.refused["catalogue"] == 1
    finally:
        await router.stop()


async def test_a_catalogue_that_was_altered_under_its_name_is_not_used() -> None:
    gossip = Gossip(bus := LocalBus(), APPLICATION)
    good = catalogue(SCHEMA, "c0")
    altered = good.model_copy(update={"stores": [good.stores[0].model_copy(update={"num_hash_columns": 0})]})
    await bus.put(gossip.names.catalogue(digest_of(good)), enveloped(altered))
    assert await gossip.catalogue(digest_of(good)) is None
    assert gossip.refused["catalogue"] == 1
    newer = good.encode().replace(b'{"format"', b'{"field_of_a_later_release":[1],"format"')
    await bus.put(gossip.names.catalogue("x"), b"catalogue\n" + newer)
    assert await gossip.catalogue("x") is None


NAMES = Names(COUNTING)


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
