"""Calls of Python functions that a routed lookup and a routed page of ten rows take, at the router and at the node.

    python -m benchmarks.request_calls [--keys 20000] [--requests 1000] [--show 20]

One connection, requests one after the other, under cProfile; what an idle process calls in the same time is taken off.
Counts do not depend on the machine or on its load. `--show` names the functions that are called most.
"""

from __future__ import annotations

import argparse
import http.client
import os
import pstats
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.big_checkpoint import PARTITIONS, BigCheckpoint, session, write
from benchmarks.routed import wait_for
from benchmarks.servers import CLUSTER_NODE, ROUTER, Server, server
from understudy.demo.local_redis import local_redis

PROFILED = """
import cProfile, os, signal
profile = cProfile.Profile()
def dump(*_):
    profile.disable()
    profile.dump_stats(os.environ["PROFILE"] + ".part")
    os.rename(os.environ["PROFILE"] + ".part", os.environ["PROFILE"])
    profile.clear()
signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
signal.signal(signal.SIGUSR2, dump)
"""
"""Code before that of a server: one signal begins to count in the thread of its loop, another one writes the counts."""

Counts = Mapping[tuple[str, int, str], int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        folder = Path(name)
        spark = session(folder)
        checkpoint = write(spark, folder / "checkpoint", provider="RocksDB", keys=options.keys)
        spark.stop()
        measure(checkpoint, folder, requests=options.requests, show=options.show)


def measure(checkpoint: BigCheckpoint, folder: Path, *, requests: int, show: int) -> None:
    """Count for each kind of request."""
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        profiles = {name: folder / f"{name}.profile" for name in ("router", "node")}
        environments = {name: {"PROFILE": str(path)} for name, path in profiles.items()}
        arguments = (str(checkpoint.path), str(folder / "data"), bus.url)
        node = running.enter_context(
            server(PROFILED + CLUSTER_NODE, *arguments, ready_path="/livez", env=environments["node"])
        )
        router = running.enter_context(
            server(PROFILED + ROUTER, bus.url, ready_path="/livez", env=environments["router"])
        )
        lookups = [f"/v1/stores/op0/keys/{checkpoint.key(number)}" for number in range(0, checkpoint.keys, 50)]
        wait_for(router, lookups[0])
        kinds = {"lookup": lookups, f"page of ten over {PARTITIONS} partitions": ["/v1/stores/op0/scan?limit=10"]}
        for kind, paths in kinds.items():
            ask(router, paths, 20)  # plans and connections are made at the first
            began_s = time.monotonic()
            busy = counted((router, node), profiles, partial(ask, router, paths, requests))
            took_s = time.monotonic() - began_s
            idle = counted((router, node), profiles, partial(time.sleep, took_s))
            for name in profiles:
                calls = (sum(busy[name].values()) - sum(idle[name].values())) / requests
                print(f"{kind:34} {name:6} {calls:8.1f} calls")
                for function, count in sorted(busy[name].items(), key=lambda each: -each[1])[:show]:
                    print(f"    {count / requests:8.1f} {function[0]}:{function[1]} {function[2]}")


def ask(router: Server, paths: Sequence[str], count: int) -> None:
    """Send requests on one connection, one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=30)
    for number in range(count):
        connection.request("GET", paths[number % len(paths)])
        reply = connection.getresponse()
        body = reply.read()
        assert reply.status == 200, body
    connection.close()


def counted(servers: Sequence[Server], profiles: Mapping[str, Path], work: Callable[[], None]) -> dict[str, Counts]:
    """Return the calls of each server's functions while the work is done, without built-in ones."""
    for each in servers:
        os.kill(each.pid, signal.SIGUSR1)
    work()
    for each in servers:
        os.kill(each.pid, signal.SIGUSR2)
    found: dict[str, Counts] = {}
    for name, path in profiles.items():
        while not path.exists():
            time.sleep(0.02)
        statistics = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
        found[name] = {function: calls for function, (_, calls, *_) in statistics.items() if function[0] != "~"}
        path.unlink()
    return found


if __name__ == "__main__":
    main()
