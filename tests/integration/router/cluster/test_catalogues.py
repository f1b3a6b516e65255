"""A catalogue that cannot be used, or was altered where it is kept: the last good one stays, and nothing dies of it."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.bus.documents import enveloped
from tests.support.bus.local_bus import LocalBus
from tests.support.cluster.fake_cluster import until
from tests.support.router.tables import APPLICATION, TASK, assigned, beat, task

from understudy_router.cluster import catalogue as module
from understudy_router.cluster.catalogue import CatalogueStores, stores_of
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import Catalogue, CatalogueStore

SCHEMA = '{"type":"struct","fields":[{"name":"c0","type":"string","nullable":true,"metadata":{}}]}'


def catalogue(schema: str, *names: str) -> Catalogue:
    store = CatalogueStore(
        store="s", operator_id=0, operator="o", key_schema=schema, key_names=list(names), partitions=1, value=[]
    )
    return Catalogue(application_id=APPLICATION, lineage="l1", partitions=1, stores=[store])


async def test_a_bad_catalogue_leaves_the_last_good_one_in_use_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = catalogue(SCHEMA, "a", "b")
    compiled: list[str] = []

    def counted(each: Catalogue, digest: str) -> CatalogueStores:
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
