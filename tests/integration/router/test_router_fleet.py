"""One router process for many applications on a real Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.support.bus.documents import eventually
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.cluster.fake_node import fake_nodes
from tests.support.cluster.fleet import by_store, speak

from understudy_shared.bus.gossip import ANNOUNCED
from understudy_shared.bus.redis_bus import RedisBus

CODE = """
import sys
from understudy_router import serve
redis, folder = sys.argv[1:]
settings = {"redis": redis, "applications": "orders-*", "data_dir": folder, "port": 0, "shutdown_delay_ms": 0}
serve.main(settings, started=lambda router: print(router.host.port, flush=True))
"""
MANY = 20


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@asynccontextmanager
async def router(redis: RedisServer, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A router process of all orders, and a client of it."""
    command = [sys.executable, "-c", CODE, redis.url, str(folder)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            yield http
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.full
async def test_many_applications_share_one_subscription_and_one_connection_to_their_node(
    redis: RedisServer, tmp_path: Path
) -> None:
    bus = RedisBus(redis.url)
    async with fake_nodes(by_store) as (node,):
        for number in range(MANY):
            await speak(bus, f"orders-{number}", node, [f"store{number}"])
        await speak(bus, "flights", node, ["delays"])
        async with router(redis, tmp_path) as http:
            before = node.accepted
            for number in range(MANY):
                named = await http.get(f"/v1/applications/orders-{number}/stores/store{number}/keys/x")
                assert (named.status_code, named.json()["value"]) == (200, {"by": f"store{number}"})
            assert node.accepted - before <= 2
            assert (await http.get("/v1/stores/delays/keys/x")).status_code == 404

            await speak(bus, "orders-new", node, ["fresh"])
            await bus.publish(ANNOUNCED, b"")

            async def is_served() -> bool:
                return (await http.get("/v1/stores/fresh/keys/x")).status_code == 200

            await eventually(is_served, what="the application that was announced")
            assert redis.command("CLIENT", "KILL", "TYPE", "pubsub") == 1, "one connection carries all channels"
            await speak(bus, "orders-new", node, ["fresh"], sequence=2)
            assert await is_served()
    await bus.close()
