"""A process without the gossip key beside others that have it: it says so, takes no lease, and loses the one it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.bus.documents import assignment
from tests.support.bus.local_bus import LocalBus
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, VERSION, cluster, cluster_node
from tests.support.spark.queries import wait_until

from understudy_shared.base.clock import SystemClock
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.message_auth import Keyring, MessageAuth
from understudy_shared.bus.redis_bus import RedisBus


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "gossip.key"
    file.write_bytes(b"k" * 32)
    file.chmod(0o600)
    return file


def holder(url: str) -> str:
    """Who has the lease, without a signature; "" when nobody has."""

    async def asked() -> str:
        bus = RedisBus(url)
        try:
            return (await Gossip(bus, APPLICATION).lease_holder() or "").partition(" ")[0]
        finally:
            await bus.close()

    return asyncio.run(asked())


@pytest.mark.parametrize("bus_kind", ["redis", "in memory"])
async def test_a_lease_that_is_not_signed_is_taken_over_by_who_has_the_key_and_by_nobody_else(
    bus_kind: str, redis: RedisServer
) -> None:
    bus = RedisBus(redis.url) if bus_kind == "redis" else LocalBus(SystemClock())
    keyless = Gossip(bus, APPLICATION)
    n1, n2 = (
        Gossip(bus, APPLICATION, MessageAuth(APPLICATION, Keyring([b"k" * 32]), sender=each)) for each in ("n1", "n2")
    )
    try:
        unsigned = await keyless.take_lease("keyless/1", above=0, expiry_ms=60_000)
        assert unsigned is not None
        signed = await n1.take_lease("n1/1", above=0, expiry_ms=60_000)
        assert signed is not None
        assert signed.term > unsigned.term
        assert "keyless/1 had the lease" in n1.auth.causes()["lease-held-by-unsigned"]
        assert not await keyless.keep_lease(unsigned, expiry_ms=60_000)
        assert not await keyless.write_assignment(assignment(term=unsigned.term, epoch=9), unsigned)
        for other in (keyless, n2):
            assert await other.take_lease("other/1", above=0, expiry_ms=60_000) is None
        assert await n1.keep_lease(signed, expiry_ms=60_000)
        assert n2.auth.causes() == {}
        await n1.give_lease_up(signed)
        assert await keyless.take_lease("n1/1", above=0, expiry_ms=60_000) is not None
        assert await n2.take_lease("n2/1", above=0, expiry_ms=60_000) is not None, "a name is no signature"
    finally:
        await bus.close()


def test_a_process_without_the_key_loses_the_lease_says_so_and_takes_none_while_keyed_nodes_live(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer, key_file: Path
) -> None:
    with cluster_node(checkpoint.path, tmp_path / "keyless", redis.url, node_id="keyless") as keyless:
        wait_until(lambda: holder(redis.url).startswith("keyless/"), what="its lease", limit_s=LIMIT_S)
        with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, routers=0, gossip_key_file=key_file) as known:
            known.start_router(gossip_key_file=key_file)
            known.wait_to_rest(copies=2, version=VERSION)
            wait_until(
                lambda: "gossip-key-missing" in keyless.member.causes() and not keyless.member.has_lease,
                what="the process without a key to say so",
                limit_s=LIMIT_S,
            )
            assert "this process has no key" in str(keyless.get("/readyz").body["degraded"])
            assert 'degraded{cause="gossip-key-missing"} 1.0' in keyless.text("/metrics")
            for node_id in ("n1", "n2"):  # one after the other: the lease never goes back to it
                known.end(node_id)
                wait_until(lambda: bool(holder(redis.url)), what="a holder", limit_s=LIMIT_S)
                assert not holder(redis.url).startswith("keyless/")
                known.start(node_id)
                known.wait_to_rest(copies=2, version=VERSION)


def test_a_router_without_the_key_says_so(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer, key_file: Path
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=1, routers=0, gossip_key_file=key_file) as known:
        router = known.start_router()
        wait_until(lambda: "gossip-key-missing" in router.router.causes(), what="it to say so", limit_s=LIMIT_S)
        assert "this process has no key" in str(router.get("/readyz").body["degraded"])
