"""A router that is asked for three times what it can do: it refuses at once what is too much, and recovers by itself.

The router is a process of its own; its node takes 20 ms for a hop and the router answers few requests at a time, so
that this machine can ask for three times its capacity and still send and count in time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.cluster.fake_cluster import Cluster, catalogue
from tests.support.cluster.fake_node import fake_nodes, found
from tests.support.measurements import measured
from tests.support.services.command_line import UNDERSTUDY, environment
from tests.support.services.open_load import LoadResult, open_load

from understudy_shared.base.sockets import free_port
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.redis_bus import RedisBus

HOP_MS = 20
AT_ONCE = 16
HALF, OVERLOAD = 0.5, 3
"""Shares of what the router can do."""

REQUESTS = [b"GET /v1/stores/words/keys/word-%d HTTP/1.1\r\nhost: r\r\n\r\n" % n for n in range(64)]
OVERLOAD_S = 30.0
LIMIT_S = 30.0
ATTEMPTS = 3
"""Overloads of which one must be answered as before: a neighbour on the machine does not take its time thrice."""


@asynccontextmanager
async def small_router(folder: Path) -> AsyncIterator[int]:
    """The port of a router process in front of two slow nodes."""
    with redis_server() as redis:
        bus, port = RedisBus(redis.url), free_port()
        async with fake_nodes(*[lambda _group, _key: found("x")] * 2) as nodes:
            words = catalogue()
            known = Cluster(None, None, Gossip(bus, words.application_id), nodes, words)  # type: ignore[arg-type]
            for node in nodes:
                node.delay_ms = HOP_MS
            await known.gossip.write_catalogue(digest_of(words), words)
            await known.assign(known.assignment())
            for node in nodes:
                await known.beat(node)
            with (folder / "router.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    UNDERSTUDY, "router", "--application-id", words.application_id, "--redis", redis.url,
                    "--port", str(port), "--max-in-flight", str(AT_ONCE), "--data-dir", str(folder),
                    env=environment(), stderr=log,
                )  # fmt: skip
            try:
                await _until_ready(port)
                yield port
                assert process.returncode is None, "the router ended"
            finally:
                process.terminate()
                await process.wait()
                await bus.close()


async def _until_ready(port: int) -> None:
    for _ in range(int(LIMIT_S / 0.1)):
        try:
            if (await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/readyz", timeout=5)).status == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError("the router did not become ready")


async def _phase(port: int, name: str, *, per_second: float, seconds: float) -> LoadResult:
    result = await open_load(port, REQUESTS, per_second=per_second, seconds=seconds)
    measured(f"{name}: {per_second:.0f}/s asked; {result.line()}")
    return result


@pytest.mark.full
async def test_three_times_too_much_is_refused_at_once_and_afterwards_everything_is_answered_again(
    tmp_path: Path,
) -> None:
    async with small_router(tmp_path) as port:
        saturated = await _phase(port, "capacity", per_second=2 * AT_ONCE * 1000 / HOP_MS, seconds=2)
        capacity = saturated.per_second(200)

        before = await _answered(port, "before", HALF * capacity)

        for _ in range(ATTEMPTS):
            during = await _phase(port, "overload", per_second=OVERLOAD * capacity, seconds=OVERLOAD_S)
            if during.per_second(200) > 0.8 * capacity:
                break
        assert set(during.latencies_ms) == {200, 429}
        assert during.broken == during.unsent == 0
        assert during.per_second(200) > 0.8 * capacity
        assert sum(during.retry_after.values()) == len(during.latencies_ms[429])
        assert during.percentile_ms(429, 0.5) < during.percentile_ms(200, 0.5)

        await _answered(port, "after", HALF * capacity, median_below_ms=2 * before.percentile_ms(200, 0.5))


async def _answered(port: int, name: str, per_second: float, *, median_below_ms: float = math.inf) -> LoadResult:
    """The first two seconds in which 95 % of what is asked is answered; within the limit, without a restart."""
    asked_s = 0.0
    while True:
        result = await _phase(port, name, per_second=per_second, seconds=2)
        asked_s += result.seconds
        if result.per_second(200) >= 0.95 * per_second and result.percentile_ms(200, 0.5) < median_below_ms:
            return result
        assert asked_s < LIMIT_S, f"too few answers {name} the overload"
