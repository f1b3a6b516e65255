"""The cost of hostile connections for other readers, and the cost of the protection for all.

    python -m benchmarks.attacks [--seconds 6] [--rounds 3] [--compare]

A router and a node (default settings), each attacked in turn by nine pipelines of 12 MB whose answers are not read,
three headers of 32 MB, and 200 silent connections, all coming back when they are closed; quiet and attacked rounds
alternate. Then the hot path with our protocol and with uvicorn's own, in turn: CPU time of the server per lookup.
`--compare` attacks services with uvicorn's protocol, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvloop
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.spark.counting_query import WORDS
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from benchmarks.load import get, run_load
from benchmarks.nowhere import Nowhere
from benchmarks.routed import wait_for
from benchmarks.servers import CLUSTER_NODE, LOAD_CORE, ROUTER, Server, pin_load, server
from understudy.demo.local_redis import local_redis
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.protocol import HttpProtocol

PLAIN = """
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from understudy_shared.server import service as http_service
http_service.HttpProtocol = lambda guard, answers, **named: HttpToolsProtocol(**named)
"""
"""Code that takes the limits off a service."""

READERS = 8
MIB = 1 << 20
MEMORY_GOAL_MIB, P99_GOAL = 64, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    pin_load()
    uvloop.run(protocol_alone(2 * options.rounds + 1))
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        folder = Path(name)
        checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(*range(1, 4))
        for title, plain in (("limits", ""), ("uvicorn's protocol", PLAIN))[: 2 if options.compare else 1]:
            with services(folder / title, checkpoint.path, plain) as (node, router):
                for role, attacked in (("router", router), ("node", node)):
                    attack(f"{role}, {title}", attacked, rounds=options.rounds, seconds=options.seconds)
        with (
            services(folder / "ours", checkpoint.path, "") as ours,
            services(folder / "plain", checkpoint.path, PLAIN) as plain_ones,
        ):
            for role, place in (("node, a lookup", 0), ("router, a routed lookup", 1)):
                hot_path(role, ours[place], plain_ones[place], rounds=2 * options.rounds + 1)


@contextmanager
def services(folder: Path, checkpoint: Path, patch: str) -> Iterator[tuple[Server, Server]]:
    """Start a node and a router of a cluster of their own."""
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {LOAD_CORE})
        arguments = (str(checkpoint), str(folder / "data"), bus.url)
        node = running.enter_context(server(patch + CLUSTER_NODE, *arguments, ready_path="/livez"))
        router = running.enter_context(server(patch + ROUTER, bus.url, ready_path="/livez"))
        wait_for(router, paths()[0])
        yield node, router


def paths() -> list[str]:
    return [f"/v1/stores/op0/keys/{word}" for word in WORDS]


def attack(title: str, attacked: Server, *, rounds: int, seconds: float) -> None:
    """Measure memory and other readers' p99, quiet and attacked in turn."""
    requests = [get(path) for path in paths()]
    run_load(attacked.port, requests, connections=READERS, seconds=seconds)  # whatever grows once has grown
    before = attacked.resident_bytes()
    quiet, during, peak = [], [], 0
    for _ in range(rounds):
        quiet.append(run_load(attacked.port, requests, connections=READERS, seconds=seconds))
        with highest(attacked) as seen, hostile_clients(attacked.port, seconds + 3):
            time.sleep(1)
            during.append(run_load(attacked.port, requests, connections=READERS, seconds=seconds))
        peak = max(peak, *seen)
    p99s = [statistics.median(load.p99_ms for load in each) for each in (quiet, during)]
    wrong = {status for load in during for status in load.statuses} - {200}
    print(
        f"{title:28} memory {before / MIB:6.0f} MiB, attacked {peak / MIB:6.0f} MiB "
        f"({(peak - before) / MIB:+.0f}, goal {MEMORY_GOAL_MIB})   "
        f"p99 {p99s[0]:6.1f} ms, attacked {p99s[1]:6.1f} ms ({p99s[1] / p99s[0]:.1f} x, goal {P99_GOAL:.0f} x)   "
        f"slowest {max(load.max_ms for load in quiet):.0f}, {max(load.max_ms for load in during):.0f} ms   "
        f"{'no' if not wrong else sorted(wrong)} errors",
        flush=True,
    )


@contextmanager
def highest(attacked: Server) -> Iterator[list[int]]:
    """Sample resident memory often."""
    seen, ended = [attacked.resident_bytes()], threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            seen.append(attacked.resident_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@contextmanager
def hostile_clients(port: int, seconds: float) -> Iterator[None]:
    """Run hostile clients in a process of their own; they end by themselves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.services.hostile_clients", str(seconds), str(port)]
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def hot_path(role: str, ours: Server, plain: Server, *, rounds: int) -> None:
    """Measure the CPU time of a lookup, by turns."""
    requests = [get(path) for path in paths()]
    costs: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(rounds):
        for name, each in (("ours", ours), ("plain", plain)):
            cpu_s = each.cpu_s()
            load = run_load(each.port, requests, seconds=2)
            answered = load.per_second * (2 + 1)  # and the second to warm up
            costs[name].append((each.cpu_s() - cpu_s) / answered * 1e6)
    ours_us, plain_us = (statistics.median(costs[name]) for name in ("ours", "plain"))
    ratios = sorted(mine / theirs for mine, theirs in zip(costs["ours"], costs["plain"], strict=True))
    print(
        f"{role:28} CPU {ours_us:.0f} us, with uvicorn's protocol {plain_us:.0f} us: {ours_us / plain_us:.3f} x "
        f"(rounds {ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


async def _constant(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _fed(protocol: asyncio.Protocol, request: bytes, count: int) -> float:
    """Return the CPU time in us of a request that a protocol parses, hands over, and answers."""
    began_s = time.process_time()
    for _ in range(count):
        protocol.data_received(request)
        await asyncio.sleep(0)
    return (time.process_time() - began_s) / count * 1e6


async def protocol_alone(rounds: int, requests: int = 20_000) -> None:
    """Measure both protocols without sockets, by turns; the least of the rounds is the cost of the code."""
    config, state = Config(_constant, log_config=None, access_log=False, ws="none"), ServerState()
    config.load()
    ours = HttpProtocol(config, state, {}, guard=ConnectionGuard())
    plain = HttpToolsProtocol(config, state, {})
    both: tuple[Any, Any] = (ours, plain)
    request = b"GET /v1/stores/op0/keys/a HTTP/1.1\r\nhost: bench\r\naccept: */*\r\nuser-agent: bench\r\n\r\n"
    costs: tuple[list[float], list[float]] = ([], [])
    for each in both:
        each.connection_made(Nowhere())
    for _ in range(rounds):
        for cost, each in zip(costs, both, strict=True):
            cost.append(await _fed(each, request, requests))
    print(
        f"{'the protocol alone':28} CPU {min(costs[0]):.1f} us, uvicorn's {min(costs[1]):.1f} us: "
        f"{min(costs[0]) / min(costs[1]):.3f} x",
        flush=True,
    )


if __name__ == "__main__":
    main()
