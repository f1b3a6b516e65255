"""Every kind of bus, for the contracts of the bus and of the messages over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.sentinel_trio import sentinel_url, sentinels_of
from tests.support.bus.worlds import LocalWorld, RedisWorld, World

from understudy_shared.bus.base import Bus


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def named_by_sentinel() -> Iterator[tuple[RedisServer, str]]:
    """A server, and the URL by which a sentinel names it."""
    with redis_server(port=0) as running, sentinels_of(running) as sentinels:
        yield running, sentinel_url(sentinels)


@pytest.fixture(params=["local", "redis", pytest.param("sentinel", marks=pytest.mark.full)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "local":
        local = LocalWorld()
        yield local
        await local.bus.close()
        return
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("server")
        over_redis = RedisWorld(server, server.url)
    else:
        over_redis = RedisWorld(*request.getfixturevalue("named_by_sentinel"))
    over_redis.server.flush()
    yield over_redis
    for bus in over_redis.buses:
        await bus.close()


@pytest.fixture
def bus(world: World) -> Bus:
    return world.process()


@pytest.fixture
def other(world: World) -> Bus:
    return world.process()
