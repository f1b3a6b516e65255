"""Nodes of a cluster and routers in this process, on real ports, over a real Redis: what tests of their talk use.

Each runs on an event loop of its own, as its process would; a test holds a node back, drains it, or ends it without a
farewell, and asks the routers as a reader would.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.cluster.served_node import Served, ServedNode
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.cluster.member import ClusterMember, Clusters
from understudy_node.fleet.starting import claim
from understudy_node.http.app import create_app
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings
from understudy_router.http.app import create_app as create_router_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import BusError
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.cluster.without_bus import Remembered
from understudy_shared.http.edge import App
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.service import Departure, Service

HEARTBEAT_MS = 200
"""Five times a second: an expiry is 0.6 s."""

APPLICATION = "counting"
TASKS, VERSION = 4, 3
"""Partitions and versions of the checkpoint that most cluster tests follow."""
LIMIT_S = 60.0
"""What is waited for takes about a second; a loaded machine gets its time."""

SETTLED_BEATS = 2
"""Heartbeats of each node after which the one that assigns has looked at what a test waited for."""


class CuttableBus(RedisBus):
    """A bus that a test takes from its node: a node without it ends as one that is killed, with no farewell."""

    is_cut = False

    async def _call(self, doing: str, work: Callable[[], Any], *, limit_ms: int | None = None) -> Any:
        if self.is_cut:
            raise BusError("the test cut it", where=self.where)
        return await super()._call(doing, work, limit_ms=limit_ms)


class ClusterNode(ServedNode):
    """A node with its part in the cluster."""

    def __init__(self, node: Node, port: int, member: ClusterMember, bus: CuttableBus, access: Access) -> None:
        super().__init__(node, port)
        self.access = access
        self.port = port
        self.member = member
        self.bus = bus

    @property
    def holds(self) -> set[str]:
        """The tasks that it has replicas of."""
        return set() if self.node.generation is None else set(self.node.generation.held)


class ClusterRouter(Served):
    """A router, and a client of its port."""

    def __init__(self, router: Router, port: int, access: Access) -> None:
        super().__init__(port)
        self.access = access
        self.port = port
        self.router = router

    def order(self) -> tuple[int, int]:
        """(term, epoch) of the assignment that it routes by; (0, 0) before there is one."""
        assignment: Any = self.lag()["assignment"]
        return (0, 0) if assignment is None else (assignment["term"], assignment["epoch"])

    def living(self) -> dict[str, dict[str, Any]]:
        """What the router reports of each node that lives, by node id."""
        nodes: Any = self.lag()["nodes"]
        return {node["node_id"]: node for node in nodes if node["live"]}

    def explain(self, key: object, *, bounds: str = "") -> dict[str, Any]:
        """Whom it would ask for a key, and whom not."""
        reply = self.get(f"/v1/stores/op0/metadata/{key}?{bounds}")
        assert reply.status == 200, reply
        return reply.body


@contextmanager
def departing(
    app: App, listener: socket.socket, departure: Departure, guard: ConnectionGuard | None = None
) -> Iterator[Service]:
    """Run an application as its command does; at the end of the block it leaves in good order."""
    service = Service(app, departure, guard)
    thread = threading.Thread(target=service.run, kwargs={"sockets": [listener]}, name="service")
    thread.start()
    try:
        wait_until(lambda: service.started or not thread.is_alive(), what="the service's start")
        yield service
    finally:
        service.should_exit = True
        thread.join(LIMIT_S)


@contextmanager
def cluster_node(
    checkpoint: Path,
    data_dir: Path,
    redis_url: str,
    *,
    node_id: str,
    port: int = 0,
    files: CheckpointFiles | None = None,
    may_die: bool = False,
    **settings: object,
) -> Iterator[ClusterNode]:
    """One node of application `counting`, until the block ends; it takes its id first, as the command does.

    `files` are what it reads the checkpoint by. Unless it `may_die`, no task of it may have when the block ends.
    """
    options: dict[str, Any] = {
        "application_id": APPLICATION,
        "lag_refresh_ms": HEARTBEAT_MS,
        "shutdown_delay_ms": 0,
        "rebalance_delay_ms": 0,
        **settings,
    }
    node_settings = ClusterNodeSettings(
        checkpoint=str(checkpoint), data_dir=data_dir, redis=redis_url, node_id=node_id, **options
    )
    listener = socket.create_server(("127.0.0.1", port))
    try:
        port = listener.getsockname()[1]
        node = Node(
            node_settings, files or LocalFiles(checkpoint), host=HostInfo("127.0.0.1", port), clock=SystemClock()
        )
        node.assign({})
        bus, access = CuttableBus(node_settings.redis_url), node_settings.own_access()
        membership = Clusters(node_settings, bus).membership(node_settings, node.host, access.identity, SystemClock())
        asyncio.run(claim(membership, node))
    except BaseException:
        listener.close()
        raise
    member = membership.join(node)
    app = create_app(node, member, access=access)
    with departing(app, listener, Departure(member.leave, node_settings.shutdown_delay_ms)):
        yield ClusterNode(node, port, member, bus, access)
        assert may_die or (node.dead, member.dead) == (None, None)


@contextmanager
def cluster_router(
    redis_url: str, *, port: int = 0, may_die: bool = False, **settings: object
) -> Iterator[ClusterRouter]:
    """One router of application `counting`, until the block ends. Unless it `may_die`, no task of it may have."""
    options: dict[str, Any] = {"application_id": APPLICATION, "shutdown_delay_ms": 0, **settings}
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    router_settings = RouterSettings(redis=redis_url, **options)
    auth = router_settings.message_auth(APPLICATION, sender=f"router-{port}")
    folder = router_settings.data_directory
    remembered = None if router_settings.data_dir is None else Remembered(folder, APPLICATION, auth)
    host = HostInfo("127.0.0.1", port)
    bus, access = RedisBus(router_settings.redis_url), router_settings.own_access()
    router = Router(
        router_settings,
        bus,
        host=host,
        clock=SystemClock(),
        remembered=remembered,
        auth=auth,
        identity=access.identity,
    )
    app = create_router_app(router, access=access)
    with departing(app, listener, Departure(router.leave, router_settings.shutdown_delay_ms)):
        yield ClusterRouter(router, port, access)
        assert may_die or router.dead is None


class Cluster:
    """Nodes that come and go, by node id, and the routers in front of them."""

    def __init__(self, checkpoint: Path, folder: Path, redis_url: str, settings: dict[str, Any]) -> None:
        self.nodes: dict[str, ClusterNode] = {}
        self.routers: list[ClusterRouter] = []
        self._checkpoint = checkpoint
        self._folder = folder
        self._redis_url = redis_url
        self._settings = settings
        self._ends: dict[str, ExitStack] = {}
        self._router_ends: list[ExitStack] = []
        self._ports: dict[str, int] = {}

    @property
    def router(self) -> ClusterRouter:
        """The first of them."""
        return self.routers[0]

    def start(self, node_id: str) -> ClusterNode:
        """A node; with the same id as one before it has that one's port, and finds its files."""
        stack = ExitStack()
        self.nodes[node_id] = stack.enter_context(
            cluster_node(
                self._checkpoint,
                self._folder / node_id,
                self._redis_url,
                node_id=node_id,
                port=self._ports.get(node_id, 0),
                **self._settings,
            )
        )
        self._ends[node_id] = stack
        self._ports[node_id] = self.nodes[node_id].port
        return self.nodes[node_id]

    def stop(self, node_id: str) -> None:
        """Let the node leave with a farewell."""
        del self.nodes[node_id]
        self._ends.pop(node_id).close()

    def end(self, node_id: str) -> None:
        """Stop the node without a farewell: it answers no request from now on."""
        self.nodes[node_id].bus.is_cut = True
        self.stop(node_id)

    def start_router(self, **settings: Any) -> ClusterRouter:
        stack = ExitStack()
        self.routers.append(stack.enter_context(cluster_router(self._redis_url, **settings)))
        self._router_ends.append(stack)
        return self.routers[-1]

    def end_router(self, index: int) -> None:
        """It ends in good order; `restart_router` brings it back."""
        self._router_ends[index].close()

    def restart_router(self, index: int, **settings: Any) -> None:
        """It ends in good order, and another takes its port."""
        self.end_router(index)
        stack = self._router_ends[index] = ExitStack()
        port = self.routers[index].port
        self.routers[index] = stack.enter_context(cluster_router(self._redis_url, port=port, **settings))

    def wait_to_rest(self, *, copies: int, version: int) -> None:
        """Return when every router knows exactly these nodes, each task has `copies` replicas, spread evenly, and all
        of them show `version`; and the node that assigns, which looks with each heartbeat, has seen that.
        """
        for router in self.routers:
            try:
                wait_until(partial(self._is_at_rest, router, copies, version), what="rest", limit_s=LIMIT_S)
                order, beats = self._assigned()
                wait_until(
                    lambda beats=beats: all(  # type: ignore[misc]
                        now >= beats[node_id] + SETTLED_BEATS for node_id, now in self._assigned()[1].items()
                    ),
                    what="further heartbeats",
                    limit_s=LIMIT_S,
                )
                if self._assigned()[0] != order:
                    wait_until(partial(self._is_at_rest, router, copies, version), what="rest again", limit_s=LIMIT_S)
            except AssertionError as error:
                raise AssertionError(f"{error}: {router.not_ready()} {router.lag()}") from None

    def _assigned(self) -> tuple[object, dict[str, int]]:
        """The newest (term, epoch) that a node follows, and how many heartbeats each has sent."""
        members = {node_id: node.member for node_id, node in self.nodes.items()}
        orders = [member.assignment.order for member in members.values() if member.assignment is not None]
        return max(orders, default=None), {node_id: member._own._sequence for node_id, member in members.items()}

    def close(self) -> None:
        """Every node leaves in good order, then every router."""
        with ExitStack() as all_of_them:
            for router in self._router_ends:
                all_of_them.callback(router.close)
            for node_id in self._ends:
                all_of_them.callback(self.stop, node_id)

    def _is_at_rest(self, router: ClusterRouter, copies: int, version: int) -> bool:
        return not router.not_ready() and rests(router, self.nodes, copies, version)


@contextmanager
def cluster(
    checkpoint: Path, folder: Path, redis_url: str, *, nodes: int = 3, routers: int = 1, **settings: object
) -> Iterator[Cluster]:
    """Nodes `n1`, `n2`... and routers, until the block ends."""
    known = Cluster(checkpoint, folder, redis_url, settings)
    with ExitStack() as stack:
        stack.callback(known.close)
        for _ in range(routers):
            known.start_router()
        for number in range(nodes):
            known.start(f"n{number + 1}")
        yield known


def rests(router: Served, nodes: Collection[str], copies: int, version: int) -> bool:
    """Whether nothing is left to do, as this router sees it."""
    report: Any = router.lag()
    living = [node for node in report["nodes"] if node["live"]]
    replicas = [replica for store in report["stores"] for replica in store["partitions"]]
    tasks = len({replica["partition"] for replica in replicas})
    return (
        {node["node_id"] for node in living} == set(nodes)
        and tasks > 0
        and [sum(node[role] for node in living) for role in ("active", "standby", "warmup")]
        == [tasks, tasks * (copies - 1), 0]
        and all(_is_even([node[role] for node in living]) for role in ("active", "standby"))
        and all(replica["current_offset_position"] == version and replica["offset_lag"] == 0 for replica in replicas)
    )


def _is_even(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1
