"""The cost of idle services: CPU of a node and a router without commits and readers, by the number of open pages.

    python -m benchmarks.idle [--tasks 12,1000] [--viewers 0,1,200] [--seconds 20] [--against DIR] [--report FILE]

Real processes: a node and a router with a Redis of their own. The checkpoint is made by hand, as Spark writes format v2
(see benchmarks.following), and every task of it runs before anything is measured. A viewer is a connection to
`/admin/v1/events` that is read; where there is a Chromium, it has the page open, too. Shares of a core are CPU time of
the process over the time of the measurement, by /proc. What viewers and the browser use themselves is left out.
`--against` measures the source tree of another commit at the same time, in processes of its own.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, chromium, shown

from benchmarks.following import FormatV2
from benchmarks.report import write_report
from benchmarks.servers import CLUSTER_NODE, LOAD_CORE, Server, fetch, pin_load, server, tree_env
from understudy.demo.local_redis import local_redis

RETAINED = 10
"""Versions of the checkpoint."""

LIMIT_S = 300.0
READ_BYTES = 1 << 18

MIN_EVENTS_PER_S = 0.4
"""Each viewer gets a heartbeat a second at least; with fewer events the stream is not what was to be measured."""

ROUTER = """
import sys
from understudy_router.serve import main
port, redis, folder = sys.argv[1:]
main({"port": int(port), "redis": redis, "application_id": "bench", "data_dir": folder})
"""

REQUEST = b"GET /admin/v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a core, and what each viewer is sent."""

    node_core: float
    router_core: float
    redis_core: float
    viewer_bytes_per_s: float = 0.0


@dataclass(slots=True)
class Received:
    """The bytes that all viewers of a router got."""

    events: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The processes of one source tree."""

    node: Server
    router: Server
    redis: Server

    def cpu_s(self) -> tuple[float, float, float]:
        return self.node.cpu_s(), self.router.cpu_s(), self.redis.cpu_s()


Rounds = dict[str, list[dict[str, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="12,1000")
    parser.add_argument("--viewers", default="0,1,200")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before the first measurement")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    pin_load()
    trees = {"": Path.cwd()} | ({} if options.against is None else {", against": options.against})
    rounds: Rounds = {}
    print(f"{'shares of a core':44}{'node':>9}{'router':>9}{'Redis':>9}{'B/s, viewer':>12}", flush=True)
    for tasks in map(int, options.tasks.split(",")):
        with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name, ExitStack() as running:
            query = FormatV2(Path(name) / "checkpoint", tasks)
            for _ in range(RETAINED):
                query.write()
                query.commit()
            clusters = {
                tree: running.enter_context(cluster(query, root, Path(name) / f"tree-{number}"))
                for number, (tree, root) in enumerate(trees.items())
            }
            time.sleep(options.settle)
            for case, found in cases(clusters, [int(each) for each in options.viewers.split(",")], options.seconds):
                for tree, shares in found.items():
                    told(rounds, f"{tasks} tasks, {case}{tree}", shares)
    if CHROMIUM is None:
        print(NO_CHROMIUM)
    if options.report is not None:
        write_report(options.report, rounds)


def told(rounds: Rounds, name: str, shares: Shares) -> None:
    """Print one line, and keep it for the report."""
    sent = f"{shares.viewer_bytes_per_s:12,.0f}" if shares.viewer_bytes_per_s else ""
    print(f"{name:44}{shares.node_core:9.2%}{shares.router_core:9.2%}{shares.redis_core:9.2%}{sent}", flush=True)
    rounds[name] = [asdict(shares)]


@contextmanager
def cluster(query: FormatV2, root: Path, folder: Path) -> Iterator[Cluster]:
    """Start one node and one router of a source tree, with every task running."""
    env = tree_env(root)
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {LOAD_CORE})
        arguments = (str(query.path), str(folder / "node"), bus.url)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez", env=env))
        router = running.enter_context(server(ROUTER, bus.url, str(folder / "router"), ready_path="/livez", env=env))
        wait_until_all_run(router, query.partitions)
        yield Cluster(node, router, Server(0, bus.pid))


def wait_until_all_run(router: Server, tasks: int) -> None:
    """Return when the router knows of so many running replicas."""
    limit_s = time.monotonic() + LIMIT_S
    while (counts := orjson.loads(fetch(router.port, "/admin/v1/overview")[1])["counts"])["running"] != tasks:
        if time.monotonic() > limit_s:
            raise RuntimeError(f"not all of {tasks} tasks were running after {LIMIT_S:g} s: {counts}")
        time.sleep(0.1)


def cases(
    clusters: Mapping[str, Cluster], viewers: Sequence[int], seconds: float
) -> Iterator[tuple[str, dict[str, Shares]]]:
    """Measure with each number of viewers, then with a browser."""
    for count in viewers:
        with ExitStack() as watching:
            received = {
                tree: watching.enter_context(watched(each.router.port, count)) for tree, each in clusters.items()
            }
            time.sleep(1)  # each viewer gets the whole overview first
            before = {tree: replace(got) for tree, got in received.items()}
            found = measured(clusters, seconds)
            for tree, got in received.items():
                events = got.events - before[tree].events
                if events < count * seconds * MIN_EVENTS_PER_S:
                    raise RuntimeError(f"{count} viewers got {events} events in {seconds:g} s")
                size_bytes = (got.size_bytes - before[tree].size_bytes) / max(count, 1) / seconds
                found[tree] = replace(found[tree], viewer_bytes_per_s=size_bytes)
        yield "page closed" if not count else f"{count} viewer{'s' * (count > 1)}", found
    if CHROMIUM is None:
        return
    with chromium() as browser, ExitStack() as shown_pages:
        for each in clusters.values():
            shown_pages.enter_context(shown(browser, f"http://127.0.0.1:{each.router.port}/admin/"))
        time.sleep(2)
        found = measured(clusters, seconds)
    yield "page in a browser", found


def measured(clusters: Mapping[str, Cluster], seconds: float) -> dict[str, Shares]:
    """Measure the CPU of every process meanwhile."""
    began_s, before = time.monotonic(), {tree: each.cpu_s() for tree, each in clusters.items()}
    time.sleep(seconds)
    took_s, after = time.monotonic() - began_s, {tree: each.cpu_s() for tree, each in clusters.items()}
    return {
        tree: Shares(*((later - earlier) / took_s for earlier, later in zip(before[tree], after[tree], strict=True)))
        for tree in clusters
    }


@contextmanager
def watched(port: int, count: int) -> Iterator[Received]:
    """Hold so many open streams of events, each of which is read."""
    received, stopping = Received(), threading.Event()

    def read() -> None:
        while not stopping.is_set():
            for key, _ in selector.select(0.1):
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(READ_BYTES)
                received.events += data.count(b"\nevent: ")
                received.size_bytes += len(data)
                if not data:  # the router let this viewer go: too few events will come
                    selector.unregister(key.fileobj)

    with ExitStack() as opened, selectors.DefaultSelector() as selector:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            connection.sendall(REQUEST)
            selector.register(connection, selectors.EVENT_READ)
        reader = threading.Thread(target=read, name="viewers", daemon=True)
        reader.start()
        try:
            yield received
        finally:
            stopping.set()
            reader.join()


if __name__ == "__main__":
    main()
