"""Direct routing beside routers, and beside a bare socket to the node, for `benchmarks.clients`: 1 and 64 connections.

The node and the router share one core, the load has the other. A ratio is to the bare socket. At 64 connections the
time is that of a call among 64 that wait at once; the CPU is that of node and router for each call.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import orjson

from benchmarks.servers import Server
from understudy import AsyncClient, Client
from understudy.client.results import RoutingCounts

READ_BYTES = 64 * 1024
"""The bytes of one read of a bare socket: for more the kernel maps memory, which takes 9 us."""

CONNECTIONS = 64
BATCH_KEYS = 100
WARM_LIMIT_S = 10.0

Call = Callable[[int], object]
AsyncCall = Callable[[int], Awaitable[object]]


class Loaded(NamedTuple):
    """Figures of many connections, in microseconds: times of calls, and CPU for a call."""

    p50: float
    p99: float
    node_cpu: float
    router_cpu: float


class Targets(NamedTuple):
    """The servers, the keys and the store that are asked."""

    node: Server
    router: Server
    store: str
    keys: Sequence[Any]

    def path(self, at: int) -> str:
        return f"/v1/stores/{self.store}/keys/{self.keys[at % len(self.keys)]}"

    def request(self, at: int) -> bytes:
        return f"GET {self.path(at)} HTTP/1.1\r\nhost: a\r\n\r\n".encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"


def report(targets: Targets, *, calls: int, rounds: int) -> None:
    """Measure by turns, and print medians of the rounds."""
    single: dict[str, list[float]] = {}
    many: dict[str, list[Loaded]] = {}
    for _ in range(rounds):
        for name, figure in (*blocking(targets, calls).items(), *asyncio.run(awaited(targets, calls)).items()):
            single.setdefault(name, []).append(figure)
        for loaded_name, loaded in asyncio.run(crowded(targets, calls)).items():
            many.setdefault(loaded_name, []).append(loaded)
    print("direct routing: one connection, median of a call in us, and its ratio to the bare socket to the node")
    for name, figures in single.items():
        bare = statistics.median(single[f"{name.partition(':')[0]}: bare socket to the node"])
        median = statistics.median(figures)
        print(
            f"  {name:40s} {median:7.0f}   {median / bare:5.2f}   rounds {' '.join(f'{each:.0f}' for each in figures)}"
        )
    print(f"direct routing: {CONNECTIONS} connections, us: p50, p99, CPU of node and router for a call")
    for name, each in many.items():
        p50, p99, node, router = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"  {name:40s} {p50:7.0f} {p99:7.0f}   node {node:5.0f}   router {router:5.0f}")


def blocking(targets: Targets, calls: int) -> dict[str, float]:
    """Return the median time of each way that blocks."""
    batch = [targets.keys[at % len(targets.keys)] for at in range(BATCH_KEYS)]
    body = orjson.dumps({"keys": [[key] for key in batch]})
    post = (
        f"POST /v1/stores/{targets.store}/lookup?compact=true HTTP/1.1\r\nhost: a\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    with ExitStack() as opened:
        raw = opened.enter_context(socket.create_connection(("127.0.0.1", targets.node.port)))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        direct = opened.enter_context(Client(targets.url, routing="direct"))
        routed = opened.enter_context(Client(targets.url))
        at_node, at_router = direct.store(targets.store), routed.store(targets.store)
        warm(lambda: at_node.get(targets.keys[0]), lambda: direct.routing_counts)
        ways: list[tuple[str, Call, int]] = [
            ("get: bare socket to the node", lambda at: _at_socket(raw, targets.request(at)), 1),
            ("get: Client, direct", lambda at: at_node.get(targets.keys[at % len(targets.keys)]).value, 1),
            ("get: Client, routed", lambda at: at_router.get(targets.keys[at % len(targets.keys)]).value, 1),
            ("get_many: bare socket to the node", lambda _: _at_socket(raw, post), 10),
            ("get_many: Client, direct", lambda _: at_node.get_many(batch), 10),
            ("get_many: Client, routed", lambda _: at_router.get_many(batch), 10),
        ]
        before = direct.routing_counts
        found = {name: timed(call, calls // share) for name, call, share in ways}
        require_direct(before, direct.routing_counts)
    return found


async def awaited(targets: Targets, calls: int) -> dict[str, float]:
    """Return the median time of each way on an event loop."""
    async with AsyncClient(targets.url, routing="direct") as direct, AsyncClient(targets.url) as routed:
        at_node, at_router = direct.store(targets.store), routed.store(targets.store)
        await warm_on_loop(lambda: at_node.get(targets.keys[0]), lambda: direct.routing_counts)
        found = {}
        for name, store in (("direct", at_node), ("routed", at_router)):

            async def get(at: int, store: Any = store) -> object:
                return (await store.get(targets.keys[at % len(targets.keys)])).value

            found[f"get: AsyncClient, {name}"] = statistics.median(await times_of(get, calls))
    return found


async def crowded(targets: Targets, calls: int) -> dict[str, Loaded]:
    """Return the figures of each way with many connections at once."""
    found = {}
    loop = asyncio.get_running_loop()
    sockets = [socket.create_connection(("127.0.0.1", targets.node.port)) for _ in range(CONNECTIONS)]
    try:
        for each in sockets:
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def at_socket(number: int, at: int) -> object:
            await loop.sock_sendall(sockets[number], targets.request(at))
            data = await loop.sock_recv(sockets[number], READ_BYTES)
            while not _is_whole(data):
                data += await loop.sock_recv(sockets[number], READ_BYTES)
            return orjson.loads(data.partition(b"\r\n\r\n")[2])

        found["get: bare sockets to the node"] = await loaded(targets, at_socket, calls)
    finally:
        for each in sockets:
            each.close()
    async with AsyncClient(targets.url, routing="direct") as direct, AsyncClient(targets.url) as routed:
        at_node, at_router = direct.store(targets.store), routed.store(targets.store)
        await warm_on_loop(lambda: at_node.get(targets.keys[0]), lambda: direct.routing_counts)
        before = direct.routing_counts
        for name, store in (("direct", at_node), ("routed", at_router)):

            async def get(_: int, at: int, store: Any = store) -> object:
                return (await store.get(targets.keys[at % len(targets.keys)])).value

            found[f"get: AsyncClient, {name}"] = await loaded(targets, get, calls)
        require_direct(before, direct.routing_counts)
    return found


async def loaded(targets: Targets, call: Callable[[int, int], Awaitable[object]], calls: int) -> Loaded:
    """Make calls from each of the connections at once, and return their figures."""
    each_calls = max(10, calls // CONNECTIONS)

    async def reader(number: int) -> list[float]:
        return await times_of(lambda at: call(number, at * CONNECTIONS + number), each_calls)

    node_s, router_s = targets.node.cpu_s(), targets.router.cpu_s()
    times = sorted(time for part in await asyncio.gather(*map(reader, range(CONNECTIONS))) for time in part)
    number = (each_calls + each_calls // 5 + 1) * CONNECTIONS
    node_cpu, router_cpu = targets.node.cpu_s() - node_s, targets.router.cpu_s() - router_s
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return Loaded(p50, p99, node_cpu / number * 1e6, router_cpu / number * 1e6)


def timed(call: Call, calls: int) -> float:
    """Return the median time of a call, in microseconds."""
    for at in range(calls // 5 + 1):
        call(at)
    times = []
    for at in range(calls):
        began = time.perf_counter()
        call(at)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


async def times_of(call: AsyncCall, calls: int) -> list[float]:
    """Return the times of calls that are awaited one after another, in microseconds."""
    for at in range(calls // 5 + 1):
        await call(at)
    times = []
    for at in range(calls):
        began = time.perf_counter()
        await call(at)
        times.append((time.perf_counter() - began) * 1e6)
    return times


def warm(read: Callable[[], object], counts: Callable[[], RoutingCounts | None]) -> None:
    """Read until the node is asked."""
    limit_s = time.monotonic() + WARM_LIMIT_S
    while not _directly(counts()):
        assert time.monotonic() < limit_s, counts()
        read()
        time.sleep(0.02)


async def warm_on_loop(read: Callable[[], Awaitable[object]], counts: Callable[[], RoutingCounts | None]) -> None:
    """Read until the node is asked."""
    limit_s = time.monotonic() + WARM_LIMIT_S
    while not _directly(counts()):
        assert time.monotonic() < limit_s, counts()
        await read()
        await asyncio.sleep(0.02)


def require_direct(before: RoutingCounts | None, after: RoutingCounts | None) -> None:
    """Fail when a router answered: the figures would be those of both."""
    assert before is not None, "direct routing"
    assert after is not None, "direct routing"
    assert after.routed == before.routed, after


def _directly(counts: RoutingCounts | None) -> int:
    return 0 if counts is None else counts.direct


def _at_socket(raw: socket.socket, request: bytes) -> object:
    raw.sendall(request)
    data = raw.recv(READ_BYTES)
    while not _is_whole(data):
        data += raw.recv(READ_BYTES)
    return orjson.loads(data.partition(b"\r\n\r\n")[2])


def _is_whole(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    return len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
