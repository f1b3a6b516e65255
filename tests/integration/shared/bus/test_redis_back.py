"""Redis comes back: the requests of thirty nodes and ten routers to it are bounded in number, and spread in time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.bus.documents import eventually
from tests.support.bus.fragile_bus import FragileBus
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.in_process import APPLICATION

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.member import ClusterMember
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Back, Bus, Lost, Stored
from understudy_shared.bus.gossip import BACK_SPREAD_HEARTBEATS, Gossip
from understudy_shared.bus.redis_bus import RedisBus

NODES = 30
ROUTERS = 10
TASKS = 30
HEARTBEAT_MS = 1000

B = TypeVar("B", bound=Bus)

# Scans of this many keys take one command; each key is read with its expiry.
READ_ALL = 1 + 2 * NODES + 2 + 2
"""Commands of a node that reads the keys once: nodes, assignment, announcement."""


class CountedBus(RedisBus):
    """A bus that counts what its owner got done, by kind, and how often it was back. On a busy machine it may be lost
    and back more than once.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.done: Counter[str] = Counter()

    async def listen(self, *channels: str) -> AsyncIterator[bytes | Lost | Back]:
        async for heard in super().listen(*channels):
            self.done["back"] += isinstance(heard, Back)
            yield heard

    async def _call(self, doing: str, work: Callable[[], Any], *, limit_ms: int | None = None) -> Any:
        done = await super()._call(doing, work, limit_ms=limit_ms)
        kind, _, key = doing.partition(" ")
        self.done[f"{kind} {key.rpartition('}:')[2].partition(':')[0]}"] += 1
        return done


@asynccontextmanager
async def members(
    checkpoint: Path, folder: Path, url: str
) -> AsyncIterator[dict[str, tuple[ClusterMember, CountedBus]]]:
    """Thirty nodes on this loop, each with a bus of its own."""
    known: dict[str, tuple[ClusterMember, CountedBus]] = {}
    async with AsyncExitStack() as stack:
        for number in range(NODES):
            node_id = f"n{number:02}"
            settings = ClusterNodeSettings(
                checkpoint=str(checkpoint),
                data_dir=folder / node_id,
                redis=url,
                node_id=node_id,
                application_id=APPLICATION,
                lag_refresh_ms=HEARTBEAT_MS,
                num_standby_replicas=0,
                workers=2,
            )
            node = Node(
                settings, LocalFiles(checkpoint), host=HostInfo("127.0.0.1", 7001 + number), clock=SystemClock()
            )
            node.assign({})
            bus = CountedBus(url)
            member = ClusterMember(
                node, Gossip(bus, settings.application), settings, MemberId(node_id, "1"), clock=SystemClock()
            )
            node.start()
            stack.push_async_callback(asyncio.to_thread, node.stop)
            member.start()
            stack.push_async_callback(member.stop)
            known[node_id] = member, bus
        yield known
        assert [member.dead for member, _ in known.values() if member.dead] == []


@asynccontextmanager
async def routers(url: str, bus_of: Callable[[], B]) -> AsyncIterator[list[tuple[Router, B]]]:
    """Ten routers on this loop, which get no requests."""
    known: list[tuple[Router, B]] = []
    async with AsyncExitStack() as stack:
        for number in range(ROUTERS):
            bus = bus_of()
            settings = RouterSettings(redis=url, application_id=APPLICATION)
            router = Router(settings, bus, host=HostInfo("127.0.0.1", 8080 + number), clock=SystemClock())
            router.start()
            stack.push_async_callback(router.stop)
            known.append((router, bus))
        yield known
        assert [router.dead for router, _ in known if router.dead] == []


def commands(redis: RedisServer) -> Counter[str]:
    """What the server did since it was started, by command."""
    info: Any = redis.command("INFO", "commandstats")
    return Counter({name.removeprefix("cmdstat_"): stats["calls"] for name, stats in info.items()})


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
    async with routers("redis://unused", lambda: bus) as known:
        await until(lambda: all(router.degraded is None for router, _ in known), what="the bus")
        bus.turn(away=True)
        await until(lambda: all(router.degraded for router, _ in known), what="its loss")
        bus.read_s.clear()
        bus.turn(away=False)
        await until(lambda: all(router.degraded is None for router, _ in known), what="the bus")
    assert ROUTERS <= len(bus.read_s) <= 2 * ROUTERS
    assert max(bus.read_s) - min(bus.read_s) > 0.25 * BACK_SPREAD_HEARTBEATS * HEARTBEAT_MS / 1000


@pytest.mark.full
async def test_when_redis_is_back_empty_each_node_and_router_asks_a_bounded_number_of_things(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(1, 2)
    with redis_server() as redis:
        async with (
            members(checkpoint.path, tmp_path, redis.url) as nodes,
            routers(redis.url, lambda: CountedBus(redis.url)) as known,
        ):

            async def in_step() -> bool:
                return (
                    all(
                        len(router.tables.nodes) == NODES and not router.not_ready() and not router.degraded
                        for router, _ in known
                    )
                    and all(
                        member.assignment is not None
                        and not member.causes()
                        and len(member.assignment.members) == NODES
                        and member.assignment.order == router.tables.assignment.order  # type: ignore[union-attr]
                        for member, _ in nodes.values()
                        for router, _ in known[:1]
                    )
                )

            await eventually(in_step, what="thirty nodes in step")
            redis.kill()

            async def all_lost() -> bool:
                return all(router.degraded for router, _ in known) and all(
                    member.causes() for member, _ in nodes.values()
                )

            await eventually(all_lost, what="everybody to notice")
            for _, bus in (*nodes.values(), *known):
                bus.done.clear()
            began_s = time.monotonic()
            redis.start()
            await eventually(in_step, what="thirty nodes in step again")

            async def has_catalogue() -> bool:
                return any(bus.done["writing catalogue"] for _, bus in nodes.values())

            await eventually(has_catalogue, what="the catalogue")
            beats = (time.monotonic() - began_s) * 1000 / HEARTBEAT_MS
            by_node = {node_id: Counter(bus.done) for node_id, (_, bus) in nodes.items()}
            by_router = [Counter(bus.done) for _, bus in known]
            calls = commands(redis)
    for done in by_node.values():
        # When it is back, and once more if a heartbeat came through before that.
        backs = max(1, done["back"])
        assert done["scanning node"] <= 2 * backs, done
        assert done["reading assignment"] <= 4 * backs, done
        assert done["writing node"] <= 4 * backs + beats, done
        # Who finds the catalogue there does not write it: on an idle machine a few do, on a busy one nearly all.
        assert done["writing catalogue"] <= backs, done
    for done in by_router:
        backs = max(1, done["back"])
        assert done["scanning node"] <= 2 * backs, done
        assert done["reading assignment"] <= 2 * backs, done
        assert done["reading catalogue"] == 0, done
    reads = calls["get"] + calls["pttl"] + calls["scan"]
    most = max(max(1, done["back"]) for done in (*by_node.values(), *by_router))
    assert reads <= 2 * most * (NODES + ROUTERS) * (READ_ALL + 4), calls
