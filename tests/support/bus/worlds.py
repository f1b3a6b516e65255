"""Every bus as several processes see it: what the contracts run over."""

from __future__ import annotations

from typing import Protocol

from tests.support.bus.local_bus import LocalBus
from tests.support.bus.redis_server import RedisServer

from understudy_shared.bus.base import Bus
from understudy_shared.bus.redis_bus import RedisBus


class World(Protocol):
    """One bus as several processes see it."""

    def process(self) -> Bus:
        """The bus in another process."""

    def emptied(self) -> Bus:
        """The bus after it lost all its keys."""


class LocalWorld:
    def __init__(self) -> None:
        self.bus = LocalBus()

    def process(self) -> Bus:
        return self.bus

    def emptied(self) -> Bus:
        return LocalBus()


class RedisWorld:
    """A bus over a Redis server; `url` is how its processes find it."""

    def __init__(self, server: RedisServer, url: str) -> None:
        self.server = server
        self.url = url
        self.buses: list[RedisBus] = []

    def process(self) -> Bus:
        self.buses.append(RedisBus(self.url, call_timeout_ms=10_000))
        return self.buses[-1]

    def emptied(self) -> Bus:
        self.server.flush()
        return self.process()
