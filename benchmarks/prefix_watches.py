"""Watches of a prefix that are opened together, at a router of two nodes and at a node, over slow storage.

    python -m benchmarks.prefix_watches [--watches 64] [--delay-ms 5] [--partitions 8] [--interval-s 1] [--tree FOLDER]

A version is committed each `--interval-s`, and each call to the storage takes `--delay-ms`. Printed is the time until
all watches have had their first event while all stay open, and the CPU for it. Those that are refused ask again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from tests.support.checkpoint.handmade_orders import HandmadeOrders
from tests.system.proof.every_read import at_once

from benchmarks.routed import wait_for
from benchmarks.servers import LOAD_CORE, SERVER_CORE, Server, server, tree_env
from benchmarks.watches import NODE, ROUTER
from understudy.demo.local_redis import local_redis

LIMIT_S = 120.0
KIND = "watch of a prefix"
LIMITS = ("1000", "2000")

SLOW = """
import time
from understudy_node.checkpoint.files import LocalFiles
def slow(call):
    def called(*args, **options):
        time.sleep({delay_s})
        return call(*args, **options)
    return called
for name in ("stat", "list", "read"):
    setattr(LocalFiles, name, slow(getattr(LocalFiles, name)))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watches", type=int, default=64)
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--interval-s", type=float, default=1.0)
    parser.add_argument("--tree", type=Path, help="run the services of another tree")
    options = parser.parse_args()
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="understudy-bench-")))
        checkpoint = HandmadeOrders(folder / "checkpoint", partitions=options.partitions)
        checkpoint.create()
        checkpoint.add(1, 2, 3)
        services = started(running, options, checkpoint.path, folder)
        running.enter_context(committing(checkpoint, options.interval_s))
        for name in ("router", "node-0"):
            measured(name, services, options.watches)


def started(running: ExitStack, options: argparse.Namespace, checkpoint: Path, folder: Path) -> dict[str, Server]:
    """Start a router and two nodes, and wait until they answer."""
    env = tree_env(options.tree) if options.tree else None
    bus = running.enter_context(local_redis())
    code = SLOW.format(delay_s=options.delay_ms / 1000) + NODE
    services: dict[str, Server] = {}
    for number, core in enumerate((SERVER_CORE, LOAD_CORE)):
        of_node = (str(checkpoint), str(folder / f"node-{number}"), bus.url, *LIMITS)
        node = running.enter_context(server(code, *of_node, ready_path="/livez", env=env, core=core))
        services[f"node-{number}"] = node
    of_router = (bus.url, str(folder / "router"), *LIMITS)
    router = running.enter_context(server(ROUTER, *of_router, ready_path="/livez", env=env, core=LOAD_CORE))
    for each in (router, *services.values()):
        wait_for(each, "/v1/stores/op0/scan?limit=1")
    return {"router": router, **services}


@contextmanager
def committing(checkpoint: HandmadeOrders, interval_s: float) -> Iterator[None]:
    """Commit a version at each interval until the block ends."""
    stop = threading.Event()

    def commit() -> None:
        for version in count(4):
            if stop.wait(interval_s):
                return
            checkpoint.add(version)

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measured(name: str, services: dict[str, Server], watches: int) -> None:
    """Open all watches at a service, and print what that took."""
    cpu_s = {each: service.cpu_s() for each, service in services.items()}
    began_s = time.monotonic()
    lacking = asyncio.run(at_once(services[name].port, KIND, request(), watches, began_s + LIMIT_S))
    took_s = time.monotonic() - began_s
    used = ", ".join(f"{each} {service.cpu_s() - cpu_s[each]:.1f}" for each, service in services.items())
    print(
        f"{name}: {watches - len(lacking)} of {watches} have begun after {took_s:.1f} s; CPU in s: {used}", flush=True
    )


def request() -> bytes:
    """Return the request for a watch of the keys of one tenant."""
    body = json.dumps({"prefix": ["b"]}).encode()
    head = "POST /v1/stores/op0/watch HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


if __name__ == "__main__":
    main()
