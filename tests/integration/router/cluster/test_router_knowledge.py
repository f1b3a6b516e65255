"""Where a router's knowledge comes from: the bus, the keys after a loss, the nodes themselves while Redis is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.bus.documents import enveloped
from tests.support.bus.fragile_bus import FragileBus
from tests.support.bus.local_bus import LocalBus
from tests.support.bus.redis_server import redis_server
from tests.support.cluster.fake_cluster import STORE, cluster, routed, until
from tests.support.cluster.fake_node import A, B, problem

from understudy_shared.bus.gossip import digest_of
from understudy_shared.bus.messages import Applied
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.lookup.hop import HopGroup, HopKey, HopOutcome

FOREVER_MS = 3_600_000


async def test_a_router_whose_redis_cannot_be_reached_starts_and_says_so(tmp_path: Path) -> None:
    async with routed(RedisBus(f"unix://{tmp_path}/nobody.sock")) as (router, http):
        await until(lambda: "nobody.sock" in (router.degraded or ""), what="the bus to be missed")
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "nobody.sock" in ready.json()["degraded"]
        assert ready.json()["reasons"] == ["no catalogue is known yet", "no assignment is known yet"]
        assert (await http.get("/livez")).status_code == 200
        refused = await http.get(f"{STORE}/keys/x")
        assert refused.status_code == 503
        assert "nobody.sock" in refused.json()["detail"]
        assert b"understudy_router_bus_connected 0.0" in (await http.get("/metrics")).content


async def test_a_router_that_starts_learns_until_it_knows_whom_to_ask() -> None:
    async with cluster(A) as known:
        await known.router.learn(within_ms=FOREVER_MS)
        assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}


async def test_a_refusal_that_shows_an_old_view_makes_the_router_read_the_keys_again() -> None:
    def refuses(_group: HopGroup, _key: HopKey) -> HopOutcome:
        return problem(ProblemType.NOT_OWNER)

    bus = LocalBus()
    async with cluster(refuses, B, bus=bus) as known:
        # Written without a message on the channel: only a reader of the key sees it.
        later = known.assignment(term=9, epoch=9)
        await bus.put(known.gossip.names.assignment, enveloped(later))
        assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "b"}
        await until(lambda: known.router.tables.assignment == later, what="the keys to be read again")


async def test_a_catalogue_that_is_not_on_the_bus_is_fetched_from_a_node() -> None:
    bus = LocalBus()
    async with cluster(A, bus=bus) as known:
        renamed = known.catalogue.model_copy(
            update={"stores": [known.catalogue.stores[0].model_copy(update={"store": "renamed"})]}
        )
        known.nodes[0].documents["/internal/v1/catalogue"] = renamed.encode()
        known.catalogue = renamed
        await known.beat(known.nodes[0])
        await until(lambda: "renamed" in known.router.stores().by_name)
        assert known.router.stores().digest == digest_of(renamed)
        assert (await known.get("/v1/stores/renamed/keys/x")).status_code == 200
        assert (await known.get(f"{STORE}/keys/x")).status_code == 404


async def test_a_bus_that_hangs_is_noticed_before_its_nodes_are_called_dead() -> None:
    bus = FragileBus()
    async with cluster(A, bus=bus) as known:
        await known.beat(known.nodes[0], heartbeat_ms=200)
        await until(lambda: known.router.tables.heartbeat_ms(default_ms=0) == 200)
        bus.is_away = True  # calls fail; the subscription does not know yet
        await until(lambda: known.router.degraded, what="the silence to be noticed")
        assert list(known.router.tables.nodes) == ["a"]
        assert (await known.get(f"{STORE}/keys/x")).status_code == 200


async def test_a_node_that_falls_silent_and_answers_when_asked_lives_and_half_of_them_unheard_is_reported() -> None:
    async with cluster(A, B) as known:
        silent, speaker = known.nodes
        for node in known.nodes:
            await known.beat(node, heartbeat_ms=50)
        known.sequence += 1
        silent.documents["/internal/v1/lags"] = known.heartbeat(silent, heartbeat_ms=50, end_version=9).encode()

        async def beat_until_it_is_reported() -> None:
            while "unheard" not in (known.router.degraded or ""):
                known.sequence += 1
                heartbeat = known.heartbeat(silent, heartbeat_ms=50, end_version=9)
                silent.documents["/internal/v1/lags"] = heartbeat.encode()
                await known.beat(speaker, heartbeat_ms=50)
                await asyncio.sleep(0.01)

        async with asyncio.timeout(20):
            await beat_until_it_is_reported()
        assert set(known.router.tables.nodes) == {"a", "b"}
        assert "1 of 2 nodes are unheard on Redis and answer when asked: a" in (known.router.degraded or "")
        assert known.router.tables.end_version == 9, "by its own word"
        assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}
        report = (await known.get("/admin/v1/lag")).json()
        assert report["bus"]["state"] == "degraded"


async def test_a_node_that_did_not_answer_is_asked_again_and_comes_back_without_the_bus() -> None:
    async with cluster(A) as known:
        (node,) = known.nodes
        await known.beat(node, heartbeat_ms=50)
        await until(lambda: "a" in known.router.tables.dead, what="its death")
        # No replica lives by what the router knows. It asks all the same: it may have been paused itself.
        assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}
        assert "a" in known.router.tables.dead
        known.sequence += 1
        node.documents["/internal/v1/lags"] = known.heartbeat(node, heartbeat_ms=60_000).encode()
        await until(lambda: "a" in known.router.tables.nodes, what="its answer")
        assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_lookups_go_on_while_redis_is_gone_and_after_it_came_back_empty(how: str) -> None:
    with redis_server() as server:
        async with cluster(A, B, bus=RedisBus(server.url, call_timeout_ms=1000)) as known:
            for node in known.nodes:
                heartbeat = known.heartbeat(node, heartbeat_ms=500, end_version=12, applied=Applied(version=12))
                node.documents["/internal/v1/lags"] = heartbeat.model_copy(update={"sequence": 99}).encode()
                await known.beat(node, heartbeat_ms=500)
            await until(lambda: known.router.tables.heartbeat_ms(default_ms=0) == 500)
            if how == "frozen":
                server.pause()
            else:
                server.kill()
            await until(lambda: known.router.degraded, what="the loss to be noticed")
            await until(lambda: known.router.tables.end_version == 12, what="nodes to be asked")
            assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}
            assert (await known.get("/readyz")).status_code == 200
            if how == "frozen":
                server.resume()
            else:
                server.start()
            await until(lambda: known.router.degraded is None, what="the bus to be back")
            assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}
            assert known.router.tables.assignment == known.assignment()
