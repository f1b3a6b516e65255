"""Redis comes back: the requests of ten routers to it are few, and spread in time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from tests.support.bus.fragile_bus import FragileBus
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.in_process import APPLICATION

from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus, Stored
from understudy_shared.bus.gossip import BACK_SPREAD_HEARTBEATS

ROUTERS = 10
HEARTBEAT_MS = 1000


@asynccontextmanager
async def routers(bus: Bus) -> AsyncIterator[list[Router]]:
    """Ten routers on this loop, which get no requests."""
    known: list[Router] = []
    async with AsyncExitStack() as stack:
        for number in range(ROUTERS):
            settings = RouterSettings(redis="redis://unused", application_id=APPLICATION)
            router = Router(settings, bus, host=HostInfo("127.0.0.1", 8080 + number), clock=SystemClock())
            router.start()
            stack.push_async_callback(router.stop)
            known.append(router)
        yield known
        assert [router.dead for router in known if router.dead] == []


class TimedBus(FragileBus):
    """A bus that notes when its keys were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_s: list[float] = []

    async def scan(self, prefix: str, *, known: Collection[str] = ()) -> dict[str, Stored]:
        found = await super().scan(prefix, known=known)
        self.read_s.append(time.monotonic())
        return found


async def test_routers_that_all_hear_of_the_bus_in_the_same_moment_do_not_read_its_keys_in_the_same_moment() -> None:
    bus = TimedBus()
    async with routers(bus) as known:
        await until(lambda: all(router.degraded is None for router in known), what="the bus")
        bus.turn(away=True)
        await until(lambda: all(router.degraded for router in known), what="its loss")
        bus.read_s.clear()
        bus.turn(away=False)
        await until(lambda: all(router.degraded is None for router in known), what="the bus")
    assert ROUTERS <= len(bus.read_s) <= 2 * ROUTERS
    assert max(bus.read_s) - min(bus.read_s) > 0.25 * BACK_SPREAD_HEARTBEATS * HEARTBEAT_MS / 1000
