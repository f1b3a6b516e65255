"""Watches through a router: delay of an event, CPU and memory of router and node, and what lookups beside them take.

    python -m benchmarks.watches [--watchers 10000] [--keys 1 10000] [--versions 6] [--beyond 20000] [--tree FOLDER]

Each version changes each of 10,000 keys. First all watch one key, then each its own. The clients read what comes at
once, in this process; router and node are processes of their own, and with two cores the node shares one with the
clients, which go behind it. The delay of an event is from the commit until this process has read it. Lookups go through
the router on a connection of their own, one after another, by a process that goes first on its core.

`--beyond` opens so many watches where `max_watchers` allows half: the others get 429. `--tree` runs the services of
another tree, such as an earlier commit.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint

from benchmarks.servers import LOAD_CORE, SERVER_CORE, Server, fetch, pin_load, server, tree_env
from understudy.demo.local_redis import local_redis

KEYS = 10_000
OPENED_AT_ONCE = 200
ROOM = 500
"""Connections beside those of watches."""

LIMIT_S = 120.0
CLIENTS_NICE = 10
CLOSED = 0
"""The status that is counted for a connection that was closed at once."""
LOOKUP_S = 0.005

NODE = """
import sys
from understudy_node.fleet.starting import node
port, checkpoint, data_dir, redis, watchers, connections = sys.argv[1:]
node({"port": int(port), "checkpoint": checkpoint, "data_dir": data_dir, "redis": redis, "application_id": "bench",
      "max_watchers": int(watchers), "max_connections": int(connections)})
"""

ROUTER = """
import sys
from understudy_router.serve import main
port, redis, data_dir, watchers, connections = sys.argv[1:]
main({"port": int(port), "redis": redis, "data_dir": data_dir, "application_id": "bench",
      "max_watchers": int(watchers), "max_connections": int(connections)})
"""

LOOKUPS = """
import os, socket, sys, time
os.nice(-10) if os.geteuid() == 0 else None
port, target, seconds, pause_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
connection = socket.create_connection(("127.0.0.1", port))
request = f"GET {target} HTTP/1.1\\r\\nhost: a\\r\\n\\r\\n".encode()
end, took, failed = time.monotonic() + seconds, [], 0
while time.monotonic() < end:
    began = time.perf_counter()
    connection.sendall(request)
    failed += not connection.recv(65536).startswith(b"HTTP/1.1 200")
    took.append((time.perf_counter() - began) * 1000)
    time.sleep(pause_s)
took.sort()
print(took[len(took) // 2], took[int(len(took) * 0.99)], took[-1], failed)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=10_000)
    parser.add_argument("--keys", type=int, nargs="*", default=[1, KEYS])
    parser.add_argument("--versions", type=int, default=6)
    parser.add_argument("--beyond", type=int, default=0)
    parser.add_argument("--changes", action="store_true", help="measure lookups beside a stream of changes, too")
    parser.add_argument("--tree", type=Path, help="run the services of another tree")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    pin_load()
    for keys in options.keys:
        measured(options, keys)
    if options.beyond:
        refused(options)


@dataclass(frozen=True)
class World:
    """A node and a router of a checkpoint that this process writes."""

    checkpoint: ManyWords
    node: Server
    router: Server


class ManyWords(HandmadeCheckpoint):
    """A checkpoint of which each version changes each of many words."""

    def counts(self, version: int) -> dict[str, int]:
        return dict.fromkeys(map(word, range(KEYS)), version)


def word(number: int) -> str:
    return f"word-{number:05}"


def started(running: ExitStack, options: argparse.Namespace, watchers: int) -> World:
    """Start a node and a router, which show version 3."""
    folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="understudy-bench-")))
    checkpoint = ManyWords(folder / "checkpoint", partitions=4)
    checkpoint.create().add(1, 2, 3)
    env = tree_env(options.tree) if options.tree else None
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    bus = running.enter_context(local_redis())
    limits = (str(watchers), str(watchers + ROOM))
    of_node = (str(checkpoint.path), str(folder / "node"), bus.url, *limits)
    node = running.enter_context(server(NODE, *of_node, ready_path="/livez", env=env, core=LOAD_CORE))
    of_router = (bus.url, str(folder / "router"), *limits)
    router = running.enter_context(server(ROUTER, *of_router, ready_path="/livez", env=env, core=SERVER_CORE))
    end_s = time.monotonic() + LIMIT_S
    while fetch(router.port, target(0))[0] != 200 and time.monotonic() < end_s:
        time.sleep(0.05)
    os.setpriority(os.PRIO_PROCESS, 0, CLIENTS_NICE)  # they share a core with the node, and go behind it
    return World(checkpoint, node, router)


def target(number: int, call: str = "keys") -> str:
    return f"/v1/stores/op0/{call}/{word(number)}"


class Client(asyncio.Protocol):
    """A client of one watch, which notes when it got its events."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd, self._number = crowd, number
        self._seen = 0
        self._has_status = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._crowd.open.append(transport)
        transport.write(f"GET {target(self._number, 'watch')} HTTP/1.1\r\nhost: a\r\n\r\n".encode())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_status:  # refused before its request was read
            self._has_status = True
            self._crowd.statuses[CLOSED] += 1

    def data_received(self, data: bytes) -> None:
        if not self._has_status:
            self._has_status = True
            self._crowd.statuses[int(data[9:12])] += 1
        now_s = time.monotonic()
        for _ in range(data.count(b"event: value") + data.count(b"event: snapshot")):
            self._crowd.at.setdefault(self._seen, []).append(now_s)
            self._seen += 1


class Crowd:
    """Clients of watches: how many got their first, second, ... event, and when."""

    def __init__(self) -> None:
        self.at: dict[int, list[float]] = {}
        self.statuses: Counter[int] = Counter()
        self.open: list[asyncio.Transport] = []

    async def join(self, port: int, watchers: int, keys: int) -> None:
        """Open watches, and return when each has its first event or a refusal."""
        loop = asyncio.get_running_loop()
        for start in range(0, watchers, OPENED_AT_ONCE):
            few = range(start, min(watchers, start + OPENED_AT_ONCE))
            clients = [partial(Client, self, number % keys) for number in few]
            await asyncio.gather(*(loop.create_connection(each, "127.0.0.1", port) for each in clients))
        await until(lambda: self.statuses.total() == watchers and len(self.at.get(0, ())) >= self.statuses[200])

    async def wait_for(self, event: int, watchers: int) -> None:
        """Return when so many have an event."""
        await until(lambda: len(self.at.get(event, ())) >= watchers)

    def close(self) -> None:
        for transport in self.open:
            transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds, or after a limit."""
    end_s = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < end_s:  # noqa: ASYNC110  # clients' bytes say it
        await asyncio.sleep(0.01)


def measured(options: argparse.Namespace, keys: int) -> None:
    """Measure watchers of some keys."""
    with ExitStack() as running:
        asyncio.run(_measured(started(running, options, options.watchers), options, keys))


async def _measured(world: World, options: argparse.Namespace, keys: int) -> None:
    name, watchers, crowd = f"{keys} keys", options.watchers, Crowd()
    servers = {"router": world.router, "node": world.node}
    quiet = await lookups(world, 3.0)
    alone = await lookups_beside_versions(world, options.versions)
    before = {each: found.resident_bytes() for each, found in servers.items()}
    began_s, spent = time.monotonic(), cpu_of(servers)
    await crowd.join(world.router.port, watchers, keys)
    figures = {f"{name}: open, s": time.monotonic() - began_s}
    for each, cpu_s in cpu_of(servers).items():
        figures[f"{name}: {each} CPU to open, s"] = cpu_s - spent[each]
        figures[f"{name}: {each} kB a watcher"] = (servers[each].resident_bytes() - before[each]) / watchers / 1024
    figures[f"{name}: watches at the node"] = metric(world.node, "understudy_watches")
    print(f"{watchers} watchers of {keys} keys: {dict(crowd.statuses)}")
    spent = cpu_of(servers)
    told = delays_of(world, crowd, range(4 + options.versions, 4 + 2 * options.versions))
    beside, delays = await asyncio.gather(lookups(world, options.versions * 1.5), told)
    for each, cpu_s in cpu_of(servers).items():
        figures[f"{name}: {each} CPU a version, s"] = (cpu_s - spent[each]) / options.versions
    got = len(delays) / options.versions
    figures |= {
        f"{name}: events a version": got,
        f"{name}: delay p50, ms": delays[len(delays) // 2] * 1000,
        f"{name}: delay p99, ms": delays[int(len(delays) * 0.99)] * 1000,
        f"{name}: delay of the last, ms": delays[-1] * 1000,
        f"{name}: lookups p50 quiet, ms": quiet[0],
        f"{name}: lookups p99 quiet, ms": quiet[1],
        f"{name}: lookups p99 beside versions without watchers, ms": alone[1],
        f"{name}: lookups p50 beside watchers, ms": beside[0],
        f"{name}: lookups p99 beside watchers, ms": beside[1],
        f"{name}: lookups longest beside watchers, ms": beside[2],
        f"{name}: lookups that failed beside watchers": beside[3],
    }
    if options.changes:
        figures[f"{name}: lookups p99 beside a stream of changes, ms"] = (await beside_changes(world))[1]
    crowd.close()
    for what, figure in figures.items():
        print(f"{what:70} {figure:10.2f}", flush=True)


async def delays_of(world: World, crowd: Crowd, versions: range) -> list[float]:
    """Commit versions, and return the sorted times until their events have come."""
    delays: list[float] = []
    for event, version in enumerate(versions, 1):
        await asyncio.to_thread(world.checkpoint.write_state, version)
        world.checkpoint.commit(version)
        committed_s = time.monotonic()
        await crowd.wait_for(event, crowd.statuses[200])
        delays += [at - committed_s for at in crowd.at.get(event, ())]
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - committed_s)))
    return sorted(delays)


async def lookups_beside_versions(world: World, versions: int) -> Sequence[float]:
    """Return what lookups take while versions come and no client watches."""

    async def commit() -> None:
        for version in range(4, 4 + versions):
            await asyncio.to_thread(world.checkpoint.add, version)
            await asyncio.sleep(1.0)

    found, _ = await asyncio.gather(lookups(world, versions * 1.5), commit())
    return found


async def beside_changes(world: World) -> Sequence[float]:
    """Return what lookups take while a client reads all changes again and again."""
    end_s = time.monotonic() + 4.0

    def read() -> None:
        while time.monotonic() < end_s:
            connection = http.client.HTTPConnection("127.0.0.1", world.router.port, timeout=60)
            connection.request("GET", "/v1/stores/op0/changes?from=2")
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            while reply.read(1 << 16):
                pass
            connection.close()

    found, _ = await asyncio.gather(lookups(world, 4.0), asyncio.to_thread(read))
    return found


async def lookups(world: World, seconds: float) -> list[float]:
    """Return p50, p99 and the longest of lookups through the router, in ms, and how many failed."""
    command = [sys.executable, "-c", LOOKUPS, str(world.router.port), target(7), str(seconds), str(LOOKUP_S)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    return [float(each) for each in out.split()]


def cpu_of(servers: dict[str, Server]) -> dict[str, float]:
    return {name: each.cpu_s() for name, each in servers.items()}


def metric(found: Server, name: str) -> float:
    text = fetch(found.port, "/metrics")[1].decode()
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} "))


def refused(options: argparse.Namespace) -> None:
    """Open twice as many watches as `max_watchers`: half of them are refused, and the others go on."""
    allowed = options.beyond // 2
    with ExitStack() as running:
        world = started(running, options, allowed)
        asyncio.run(_refused(world, options.beyond, allowed))


async def _refused(world: World, watchers: int, allowed: int) -> None:
    crowd = Crowd()
    await crowd.join(world.router.port, watchers, 1)
    status, _ = fetch(world.router.port, target(3))
    world.checkpoint.add(4)
    committed_s = time.monotonic()
    await crowd.wait_for(1, crowd.statuses[200])
    took_s = time.monotonic() - committed_s
    print(f"{watchers} watches where {allowed} are allowed: {dict(crowd.statuses)}; a lookup beside them: {status}")
    print(f"the next version: {len(crowd.at.get(1, ()))} of them got it, the last after {took_s * 1000:.0f} ms")
    crowd.close()


if __name__ == "__main__":
    main()
