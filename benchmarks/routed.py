"""Routed lookups: the router's throughput beside its limit and its peers, and what it adds to a quiet lookup.

    python -m benchmarks.routed [--keys 100000] [--seconds 5]

One router process on one core; the node, Redis and the load share the other, so that the router is what is measured.
Peers, in the same run: an ASGI app that returns a constant (the limit), FastAPI with redis-py GET of the same answers
(the copy that Understudy makes unnecessary), and a FastAPI router that forwards each request with httpx.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import orjson
import redis

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.load import Load, get, post, run_load
from benchmarks.servers import (
    CLUSTER_NODE,
    CONSTANT_APP,
    HTTPX_ROUTER,
    LOAD_CORE,
    REDIS_GET,
    ROUTER,
    Server,
    fetch,
    pin_load,
    server,
)
from understudy.demo.local_redis import local_redis

SAMPLED_KEYS = 1_000
BATCH_KEYS = 100
START_LIMIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark.stop()
        measure(checkpoint, Path(folder), seconds=options.seconds)


def measure(checkpoint: BigCheckpoint, folder: Path, *, seconds: float) -> None:
    """Measure all figures."""
    pin_load()
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {LOAD_CORE})
        arguments = (str(checkpoint.path), str(folder / "data"), bus.url)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez", core=LOAD_CORE))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez"))
        keys = [checkpoint.key(number) for number in random.Random(0).sample(range(checkpoint.keys), SAMPLED_KEYS)]
        paths = [f"/v1/stores/op0/keys/{key}" for key in keys]
        wait_for(router, paths[0])
        copy_into_redis(bus.url, router, paths)
        limit = load_of(CONSTANT_APP, paths=["/"], ready="/", seconds=seconds)
        redis_get = load_of(
            REDIS_GET, bus.url, paths=[f"/{number}" for number in range(len(paths))], ready="/0", seconds=seconds
        )
        httpx_router = load_of(HTTPX_ROUTER, str(node.port), paths=paths, ready=paths[0], seconds=seconds)
        cpu_s = router.cpu_s()
        routed = run_load(router.port, [get(path) for path in paths], seconds=seconds)
        cpu_us = (router.cpu_s() - cpu_s) / (routed.per_second * (seconds + 1)) * 1e6
        batches = run_load(router.port, batches_of(keys), connections=8, seconds=seconds)
        quiet_routed = run_load(router.port, [get(path) for path in paths], connections=1, seconds=seconds)
        quiet_direct = run_load(node.port, [get(path) for path in paths], connections=1, seconds=seconds)
    for what, load in (("routed", routed), ("batches", batches), ("httpx router", httpx_router), ("redis", redis_get)):
        assert set(load.statuses) == {200}, f"{what}: {load.statuses}"
    print(f"constant ASGI app    {limit.per_second:10,.0f}/s   p50 {limit.p50_ms:6.2f} ms  p99 {limit.p99_ms:6.2f} ms")
    for what, load in (("routed lookup", routed), ("FastAPI + redis GET", redis_get), ("httpx router", httpx_router)):
        print(
            f"{what:20} {load.per_second:10,.0f}/s   p50 {load.p50_ms:6.2f} ms  p99 {load.p99_ms:6.2f} ms   "
            f"{load.per_second / limit.per_second:.2f} of the constant app"
        )
    print(f"routed lookup against FastAPI + redis-py GET: {routed.per_second / redis_get.per_second:.1f} x (goal 3 x)")
    print(f"routed lookup against the httpx router: {routed.per_second / httpx_router.per_second:.1f} x (goal 25 x)")
    print(f"routed lookup against the constant app: {routed.per_second / limit.per_second:.2f} (goal 0.5, defect 0.35)")
    print(f"router CPU per lookup: {cpu_us:.0f} us")
    per_key = batches.per_second * BATCH_KEYS
    print(
        f"batches of {BATCH_KEYS}: {per_key:,.0f} keys/s, {per_key / routed.per_second:.1f} x single lookups (goal 5 x)"
    )
    print(
        f"one connection: routed p50 {quiet_routed.p50_ms:.2f} ms, node asked directly {quiet_direct.p50_ms:.2f} ms, "
        f"{quiet_routed.p50_ms - quiet_direct.p50_ms:.2f} ms more (goal 1.5 ms)"
    )


def load_of(code: str, *arguments: str, paths: list[str], ready: str, seconds: float) -> Load:
    """Measure the load that a server of its own takes; it is gone before the next one is measured."""
    with ExitStack() as alone:
        peer = alone.enter_context(server(code, *arguments, ready_path=ready))
        return run_load(peer.port, [get(path) for path in paths], seconds=seconds)


def batches_of(keys: list[str]) -> list[bytes]:
    """Return requests of BATCH_KEYS keys each."""
    return [
        post("/v1/stores/op0/lookup", orjson.dumps({"keys": [[key] for key in keys[start : start + BATCH_KEYS]]}))
        for start in range(0, len(keys), BATCH_KEYS)
    ]


def wait_for(router: Server, path: str) -> None:
    """Return when the router answers a lookup."""
    limit_s = time.monotonic() + START_LIMIT_S
    while fetch(router.port, path)[0] != 200:
        if time.monotonic() > limit_s:
            raise RuntimeError(f"{path} is not answered: {fetch(router.port, path)}")
        time.sleep(0.02)


def copy_into_redis(url: str, router: Server, paths: list[str]) -> None:
    """Copy the very answers into Redis, under short keys."""
    with redis.Redis.from_url(url) as client:
        for number, path in enumerate(paths):
            client.set(str(number), fetch(router.port, path)[1])


if __name__ == "__main__":
    main()
