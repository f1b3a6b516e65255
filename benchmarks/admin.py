"""The costs of reports of a large cluster for a router: CPU, the longest hold of its loop, and how long a request
takes.

    python -m benchmarks.admin [--nodes 1000] [--replicas 100000]

No process but this one: the tables of a router are filled as its bus would, and its application is asked without a
socket, by a client that drops what it gets: to join 24 MB would pause the loop for longer than to make them. "Hold" is
the longest slice by CPU time, between two of which lookups are answered; figures are the least of three runs. The
requests at the end run on one loop with a timer that measures its pauses: of a cluster that is well, and of one whose
nodes have all fallen silent, as when Redis is gone: then every replica is looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Generator, Iterator, MutableMapping
from typing import Any, NamedTuple

from tests.support.bus.local_bus import LocalBus

from benchmarks.loop_pauses import PauseMeter
from benchmarks.scale_parts import Cluster
from benchmarks.simulated import APPLICATION
from understudy_router.admin.facts import index_replicas
from understudy_router.admin.indicators import health_of
from understudy_router.admin.lag_report import LagQuery, lag_tree, page_of
from understudy_router.admin.overview import Overview, overview_of
from understudy_router.admin.rates import Rates
from understudy_router.admin.safe_to_stop import losses_of, losses_of_all
from understudy_router.admin.sampling import points_of
from understudy_router.admin.snapshot import About, ClusterSnapshot, Observed, gather
from understudy_router.cluster.catalogue import CatalogueStores, stores_of
from understudy_router.http.app import create_app
from understudy_router.questions.lookup.service import RouterLookups
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.background import SLICE_S
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo, Role
from understudy_shared.reads.bounds import NO_BOUND
from understudy_shared.server.service import leave_out_what_stays

RUNS = 3
SILENT_S = 5
"""After so long without a heartbeat, no node is counted on."""
REQUESTS = 5
HOST = HostInfo("127.0.0.1", 8080)
TARGETS = (
    "/admin/v1/lag?limit=100",
    "/admin/v1/lag?limit=1000",
    "/admin/v1/lag?top=100",
    "/admin/v1/lag?sort=-time_lag&role=standby&limit=100",
    "/admin/v1/lag?node=node-00007&limit=100",
    "/admin/v1/health",
    "/admin/v1/nodes",
    "/admin/v1/nodes/node-00007/safe-to-stop",
    "/admin/v1/history",
    "/admin/v1/overview",
    "/admin/v1/lag?format=csv",
    "/admin/v1/lag",
)


class Cost(NamedTuple):
    """The cost of work in slices."""

    what: str
    cpu_ms: float
    hold_ms: float
    slices: int

    def __str__(self) -> str:
        return f"{self.what:52}{self.cpu_ms:10,.1f} ms CPU{self.hold_ms:8.1f} ms hold{self.slices:8,} slices"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=100_000)
    options = parser.parse_args()
    world = World(options.nodes, options.replicas // 2)
    for cost in costs(world):
        print(cost, flush=True)
    asyncio.run(requests(world))
    time.sleep(SILENT_S)
    asyncio.run(requests(world, is_silent=True))


class World:
    """A router that has heard every node of a large cluster."""

    def __init__(self, nodes: int, partitions: int) -> None:
        cluster = Cluster(nodes, partitions)
        settings = RouterSettings(redis="redis://unused", application_id=APPLICATION)
        self.router = Router(settings, LocalBus(), host=HOST, clock=SystemClock())
        tables = self.router.tables
        digest, catalogue = cluster.nodes[0].catalogue()
        duties: dict[str, dict[str, Role]] = {node.node_id: {} for node in cluster.nodes}
        for task, duty in cluster.assigned.items():
            for node_id in duty.holders:
                duties[node_id][task] = Role.ACTIVE if node_id == duty.active else Role.STANDBY
        for node in cluster.nodes:
            node.assign(duties[node.node_id])
        now_ms = self.router.now_ms()
        self.heartbeats = cluster.heartbeats(1)
        tables.bus_back(now_ms)
        tables.assigned(cluster.assignment(1), now_ms)
        self.hear()
        self.stores: CatalogueStores = stores_of(catalogue, digest)
        self.router.watcher.catalogue.stores = self.stores
        self.router.watcher.bus_lost_why = None

    def hear(self) -> None:
        """Hear every heartbeat again, as if sent now."""
        now_ms = self.router.now_ms()
        for heartbeat in self.heartbeats:
            self.router.tables.heard(heartbeat, age_ms=0, now_ms=now_ms)

    def about(self, tick: int) -> About:
        clock = self.router.clock
        return About(tick, clock.monotonic_ms(), clock.wall_us(), APPLICATION, HOST)


def costs(world: World) -> Iterator[Cost]:
    """Yield the cost of each part by itself."""
    tables, stores = world.router.tables, world.stores
    assert tables.assignment is not None
    assignment = tables.assignment
    cost, index = least("number the replicas, once per assignment", lambda: index_replicas(assignment, stores))
    yield cost
    cost, snapshot = least("look at the cluster, once a tick", lambda: gather(tables, stores, world.about(1), index))
    yield cost
    for query in (
        LagQuery(),
        LagQuery(sort="-lag"),
        LagQuery(sort="-lag", limit=1000),
        LagQuery(sort="age", role="standby"),
    ):
        what = f"a page of {query.limit:,} replicas by {query.sort}" + (f", {query.role}" if query.role else "")
        yield least(what, lambda query=query: page_of(snapshot, query))[0]  # type: ignore[misc]
    yield least("the whole tree", lambda: tree(snapshot))[0]
    yield least("may this node be stopped", lambda: losses_of(snapshot, "node-00007", lambda _: NO_BOUND))[0]
    cost, losses = least("may each node be stopped", lambda: losses_of_all(snapshot, lambda _: NO_BOUND))
    yield cost
    yield least("a point of history", lambda: points_of(snapshot, Rates()))[0]
    seen = Observed(snapshot, health=drained(health_of(Observed(snapshot)))[0])
    cost, first = least("the overview, the first time", lambda: overview_of(seen, losses, {}, None))
    yield cost
    later: ClusterSnapshot = drained(gather(tables, stores, world.about(2), index))[0]
    again = Observed(later, health=drained(health_of(Observed(later)))[0])
    cost, second = least("the overview, a tick later", lambda: overview_of(again, losses, {}, first))
    yield cost
    yield least("what changed, as text", lambda: changed(first, second))[0]
    yield least("the whole overview, as text", lambda: written(second))[0]


def tree(snapshot: ClusterSnapshot) -> Generator[None, None, int]:
    """Make the tree, and return its size."""
    size_bytes = 0
    for piece in lag_tree(snapshot):
        size_bytes += len(piece)
        yield
    return size_bytes


def changed(first: Overview, second: Overview) -> Generator[None, None, bytes]:
    yield
    return second.since(first.tick)


def written(overview: Overview) -> Generator[None, None, bytes]:
    yield
    return overview.whole()


def least(what: str, steps: Callable[[], Generator[None, None, Any]]) -> tuple[Cost, Any]:
    """Return the least cost of RUNS, and the result."""
    runs = [drained(steps()) for _ in range(RUNS)]
    found = runs[-1][0]
    cpu_ms, hold_ms = (min(times) for times in zip(*((sum(taken), max(taken)) for _, taken in runs), strict=True))
    return Cost(what, cpu_ms, hold_ms, len(runs[-1][1])), found


def drained(steps: Generator[None, None, Any]) -> tuple[Any, list[float]]:
    """Return the result of work in slices, and the CPU time of each slice in milliseconds."""
    taken: list[float] = []
    began_s = time.thread_time()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, [*taken, (time.thread_time() - began_s) * 1000]
        now_s = time.thread_time()
        if now_s - began_s >= SLICE_S:
            taken.append((now_s - began_s) * 1000)
            began_s = now_s


async def requests(world: World, *, is_silent: bool = False) -> None:
    """Whole requests, on a loop whose pauses are measured."""
    leave_out_what_stays()  # the simulated nodes are no part of a router, and collections would look at them
    meter = PauseMeter()
    meter.start()
    app = create_app(world.router)
    what = "request, all nodes silent" if is_silent else "request"
    print(f"\n{what:60}{'p50':>10}{'longest':>10}{'pause':>10}{'bytes':>14}")
    await asked(app, TARGETS[0])
    for target in TARGETS:
        if not is_silent:
            world.hear()
        await asyncio.sleep(0.05)
        meter.take()
        times, size = [], 0
        for _ in range(REQUESTS):
            began_s = time.perf_counter()
            size = await asked(app, target)
            times.append((time.perf_counter() - began_s) * 1000)
        await asyncio.sleep(0.02)
        pause = meter.take()["longest_own_ms"]
        times.sort()
        print(f"{target:60}{times[len(times) // 2]:8.1f}ms{times[-1]:8.1f}ms{pause:8.1f}ms{size:14,}", flush=True)


async def asked(app: RouterLookups, target: str) -> int:
    """Return the size of the answer to one request."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"router")],
        "client": ("127.0.0.1", 1),
        "server": (HOST.host, HOST.port),
    }
    size = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal size
        assert message.get("status", 200) == 200, message
        size += len(message.get("body", b""))

    await app(scope, receive, send)
    return size


if __name__ == "__main__":
    main()
