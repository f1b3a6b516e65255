"""The Python client's `get` and `get_many`, beside httpx, http.client and a bare socket, and beside redis-py.

    python -m benchmarks.clients [--keys 20000] [--calls 3000] [--rounds 3] [--only direct]

One connection, one call after another, at a node and through a router. All ask the same keys in turns, round by round;
figures are medians of rounds. A ratio is to the bare socket of the same server. redis-py reads copies of the same
answers from a real Redis, by a Unix socket. Then direct routing beside routers (`clients_direct`). Q46 and Q47.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import orjson
import redis
import redis.asyncio

from benchmarks import clients_direct
from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.servers import CLUSTER_NODE, LOAD_CORE, NODE, ROUTER, SERVER_CORE, fetch, pin_load, server
from understudy import AsyncClient, Client
from understudy.demo.local_redis import local_redis

BATCH_KEYS = 100
STORE = "op0"
START_LIMIT_S = 60.0

Call = Callable[[int], object]
AsyncCall = Callable[[int], Awaitable[object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["direct"], help="leave the rest out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark.stop()
        if options.only is None:
            measure(checkpoint, Path(folder), calls=options.calls, rounds=options.rounds)
        measure_direct(checkpoint, Path(folder), calls=options.calls, rounds=options.rounds)


def measure(checkpoint: BigCheckpoint, folder: Path, *, calls: int, rounds: int) -> None:
    """Measure a node that holds everything, then a router before a node, and print both beside their peers."""
    pin_load()
    keys = some_keys(checkpoint)
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {SERVER_CORE})  # as the node: its answers cross cores, too
        node = running.enter_context(server(NODE, str(checkpoint.path), str(folder / "node"), ready_path="/readyz"))
        copy_into_redis(bus.url, node.port, keys)
        report("a node", run(node.port, bus.url, keys, calls=calls, rounds=rounds))
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {LOAD_CORE})
        arguments = (str(checkpoint.path), str(folder / "member"), bus.url)
        running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez", core=LOAD_CORE))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez"))
        copy_into_redis(bus.url, router.port, keys)
        report("a router", run(router.port, bus.url, keys, calls=calls, rounds=rounds))


def measure_direct(checkpoint: BigCheckpoint, folder: Path, *, calls: int, rounds: int) -> None:
    """Measure a client that asks the node itself, beside one that asks the router, and print both."""
    pin_load()
    keys = some_keys(checkpoint)
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {SERVER_CORE})
        arguments = (str(checkpoint.path), str(folder / "direct"), bus.url)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez"))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez"))
        copy_into_redis(bus.url, router.port, keys)
        clients_direct.report(clients_direct.Targets(node, router, STORE, keys), calls=calls, rounds=rounds)


def some_keys(checkpoint: BigCheckpoint) -> list[Any]:
    """Return the keys that are asked for, the same in each run."""
    numbers = random.Random(0).sample(range(checkpoint.keys), min(1000, checkpoint.keys))
    return [checkpoint.key(number) for number in numbers]


def run(port: int, redis_url: str, keys: Sequence[Any], *, calls: int, rounds: int) -> dict[str, list[float]]:
    """Return the median time of each way to ask, in microseconds, for each round."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        with ExitStack() as open_connections:
            for name, call, share in blocking(port, redis_url, keys, open_connections):
                found.setdefault(name, []).append(timed(call, calls // share))
        for name, figure in asyncio.run(awaited(port, redis_url, keys, calls)).items():
            found.setdefault(name, []).append(figure)
    return found


def blocking(port: int, redis_url: str, keys: Sequence[Any], opened: ExitStack) -> list[tuple[str, Call, int]]:
    """Return the ways to ask that block, each with the share of the calls that it gets."""
    url = f"http://127.0.0.1:{port}"
    client = opened.enter_context(Client(url))
    store = client.store(STORE)
    raw = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain = http.client.HTTPConnection("127.0.0.1", port)
    opened.callback(plain.close)
    by_httpx = opened.enter_context(httpx.Client(trust_env=False))
    values = redis.Redis.from_url(redis_url)
    opened.callback(values.close)
    batch = list(range(BATCH_KEYS))
    body = orjson.dumps({"keys": [[keys[at]] for at in batch]})
    many = f"/v1/stores/{STORE}/lookup?compact=true"

    def at_socket(request: bytes) -> object:
        raw.sendall(request)
        data = raw.recv(clients_direct.READ_BYTES)
        head, _, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(rest) < length:
            rest += raw.recv(clients_direct.READ_BYTES)
        return orjson.loads(rest)

    def by_http_client(method: str, path: str, content: bytes | None = None) -> object:
        plain.request(method, path, content, {"content-type": "application/json"} if content else {})
        return orjson.loads(plain.getresponse().read())

    post = f"POST {many} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return [
        ("get: bare socket", lambda at: at_socket(_get(keys[at % len(keys)])), 1),
        ("get: understudy.Client", lambda at: store.get(keys[at % len(keys)]).value, 1),
        ("get: http.client", lambda at: by_http_client("GET", _path(keys[at % len(keys)])), 1),
        ("get: httpx", lambda at: orjson.loads(by_httpx.get(url + _path(keys[at % len(keys)])).content), 4),
        ("get: redis-py", lambda at: orjson.loads(_bytes(values.get(f"k{at % len(keys)}"))), 1),
        ("get_many: bare socket", lambda _: at_socket(post.encode() + body), 10),
        ("get_many: understudy.Client", lambda _: store.get_many([keys[at] for at in batch]), 10),
        ("get_many: http.client", lambda _: by_http_client("POST", many, body), 10),
        (
            "get_many: redis-py",
            lambda _: _loaded(values.mget([f"k{at}" for at in batch])),
            10,
        ),
    ]


async def awaited(port: int, redis_url: str, keys: Sequence[Any], calls: int) -> dict[str, float]:
    """Return the median time of each way to ask on an event loop, in microseconds."""
    url, batch = f"http://127.0.0.1:{port}", list(range(BATCH_KEYS))
    values = redis.asyncio.Redis.from_url(redis_url)
    async with AsyncClient(url) as client, httpx.AsyncClient(trust_env=False) as by_httpx:
        store = client.store(STORE)

        async def get(at: int) -> object:
            return (await store.get(keys[at % len(keys)])).value

        async def get_by_httpx(at: int) -> object:
            return orjson.loads((await by_httpx.get(url + _path(keys[at % len(keys)]))).content)

        async def get_by_redis(at: int) -> object:
            return orjson.loads(_bytes(await values.get(f"k{at % len(keys)}")))

        async def get_many(_: int) -> object:
            return await store.get_many([keys[at] for at in batch])

        async def get_many_by_redis(_: int) -> object:
            return _loaded(await values.mget([f"k{at}" for at in batch]))

        ways: list[tuple[str, AsyncCall, int]] = [
            ("get: understudy.AsyncClient", get, 1),
            ("get: httpx.AsyncClient", get_by_httpx, 4),
            ("get: redis.asyncio", get_by_redis, 1),
            ("get_many: understudy.AsyncClient", get_many, 10),
            ("get_many: redis.asyncio", get_many_by_redis, 10),
        ]
        found = {name: await timed_on_loop(call, calls // share) for name, call, share in ways}
    await values.aclose()
    return found


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


async def timed_on_loop(call: AsyncCall, calls: int) -> float:
    """Return the median time of a call that is awaited, in microseconds."""
    for at in range(calls // 5 + 1):
        await call(at)
    times = []
    for at in range(calls):
        began = time.perf_counter()
        await call(at)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def copy_into_redis(url: str, port: int, keys: Sequence[Any]) -> None:
    """Copy the answers of all keys, which have to be there, into Redis."""
    with redis.Redis.from_url(url) as values:
        limit_s = time.monotonic() + START_LIMIT_S
        for at, key in enumerate(keys):
            status, body = fetch(port, _path(key))
            while status != 200 and time.monotonic() < limit_s:
                time.sleep(0.05)
                status, body = fetch(port, _path(key))
            assert status == 200, body
            values.set(f"k{at}", body)


def report(what: str, figures: dict[str, list[float]]) -> None:
    """Print the figures of a server."""
    print(f"{what}: one connection, median of a call in us, and its ratio to the bare socket")
    for name, rounds in figures.items():
        bare = statistics.median(figures[f"{name.partition(':')[0]}: bare socket"])
        median = statistics.median(rounds)
        print(f"  {name:34s} {median:7.0f}   {median / bare:5.2f}   {median - bare:+6.0f}   rounds {_shown(rounds)}")


def _shown(rounds: Sequence[float]) -> str:
    return " ".join(f"{each:.0f}" for each in rounds)


def _path(key: object) -> str:
    return f"/v1/stores/{STORE}/keys/{key}"


def _get(key: object) -> bytes:
    return f"GET {_path(key)} HTTP/1.1\r\nhost: a\r\n\r\n".encode()


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def _loaded(values: object) -> list[object]:
    assert isinstance(values, list)
    return [orjson.loads(each) for each in values]


if __name__ == "__main__":
    main()
