"""Every kind of bus, for the contracts of the bus and of the messages over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.worlds import LocalWorld, RedisWorld, World

from understudy_shared.bus.base import Bus


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(params=["local", "redis"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "local":
        local = LocalWorld()
        yield local
        await local.bus.close()
        return
    server: RedisServer = request.getfixturevalue("server")
    server.flush()
    over_redis = RedisWorld(server, server.url)
    yield over_redis
    for bus in over_redis.buses:
        await bus.close()


@pytest.fixture
def bus(world: World) -> Bus:
    return world.process()


@pytest.fixture
def other(world: World) -> Bus:
    return world.process()
