"""What runs: Spark, Redis, three nodes, two routers, and a proxy on every way between them. All at default settings but
for ports, ids and folders.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.refused_writes import WAYS
from tests.support.cluster.served_node import Reply
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.system.proof.base_watch import BaseWatch
from tests.system.proof.commit_watch import CommitWatch
from tests.system.proof.disk import small_disk
from tests.system.proof.fake_clock import FakeClock
from tests.system.proof.history import Seen
from tests.system.proof.http_talk import within
from tests.system.proof.memory_watch import MemoryWatch
from tests.system.proof.processes import Proxies, Service
from tests.system.proof.schedule import StorageKind
from tests.system.proof.spark_driver import SparkDriver, spark_driver
from tests.system.proof.storage import Storage, storage
from tests.system.proof.subjects import COUNTS, SUBJECTS, Subject

from understudy_shared.base.sockets import free_port

APPLICATION = "proof"
NODES = ("node-1", "node-2", "node-3")
ROUTERS = ("router-1", "router-2")
NODE_WITH_SMALL_DISK = "node-3"
NODE_WITH_FAKE_CLOCK = "node-2"
FORMATS = {
    "rocksdb": ROCKSDB_CHANGELOG_V2,
    "rocksdb-v1": ROCKSDB_CHANGELOG_V1.with_default_manager(),
    "hdfs": HDFS_V1.with_default_manager(),
}
"""Without unique file names a crash wants Spark's own checkpoint manager (tests/support/spark/crash.py says why)."""

SMALL_OVERLAY_BYTES = 2 << 10
"""Of a store partition: less than the changes of a version."""

REBALANCE_DELAY_MS = 1000

NEAR = 3
"""Versions from the newest at which a replica counts as well."""

SETTLE_LIMIT_S = 60.0
COMMIT_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """Which query runs, how it keeps its state, and how often it commits."""

    state_format: StateFormat = ROCKSDB_CHANGELOG_V2
    every_ms: int = COUNTS.every_ms
    query: str = COUNTS.name
    storage: StorageKind = "folder"
    """Where the checkpoint lives."""
    short_lived_bases: bool = False
    """Whether nodes keep few changes in memory and Spark writes snapshots often: bases are replaced all the time."""
    signed: bool = False
    """Whether nodes and routers have a gossip key; dead nodes' tasks then get other places soon."""
    line: str = ""
    """The release line of the Spark that runs the query; empty: that of the tests."""

    @property
    def subject(self) -> Subject:
        return SUBJECTS[self.query]


def options_of(
    subject: Subject,
    state_format: str = "rocksdb",
    *,
    storage: StorageKind = "folder",
    short_lived_bases: bool = False,
    signed: bool = False,
    line: str = "",
) -> WorldOptions:
    """The options with which a query is proven. ValueError when it cannot be kept in that format."""
    if state_format not in subject.formats:
        raise ValueError(f"the query {subject.name!r} needs one of these formats: {', '.join(subject.formats)}")
    return WorldOptions(FORMATS[state_format], subject.every_ms, subject.name, storage, short_lived_bases, signed, line)


@dataclass(slots=True)
class World:
    """All that runs, by name. `small_disk` is why there is none where the machine does not allow it."""

    subject: Subject
    folder: Path
    storage: Storage
    spark: SparkDriver
    redis: RedisServer
    proxies: Proxies
    watch: CommitWatch
    nodes: Mapping[str, Service]
    routers: Mapping[str, Service]
    data: Mapping[str, Path]
    """Each node's own folder."""
    small_disk: Path | str
    clock: FakeClock
    refusals: Iterator[str] = field(default_factory=lambda: cycle(WAYS))
    """The next way in which Redis refuses writes."""
    settle_limit_s: float = SETTLE_LIMIT_S
    ask_also: Callable[[str], object] = lambda store: None
    """Tells the readers of a store that was added."""
    application: str = ""
    """Which one this is where nodes and routers have several (fleet_world.py)."""

    def lag_report(self, router: str = ROUTERS[0]) -> dict[str, Any]:
        """The lag report of a router."""
        reply = self._lag(router)
        assert reply.status == 200, reply
        return reply.body

    def _lag(self, router: str) -> Reply:
        return self.routers[router].get(within(self.application, "/admin/v1/lag"))

    def active_nodes(self) -> Counter[str]:
        """The nodes that are active for something, each with for how many partitions."""
        return Counter(
            replica["node_id"]
            for store in self.lag_report()["stores"]
            for replica in store["partitions"]
            if replica["role"] == "active"
        )

    def another_node(self, name: str, location: str) -> Service:
        """A node beside the others, not started: like them, but it follows the checkpoint at `location`."""
        assert self.redis.port is not None
        data = self.folder / "data" / name
        node = node_of(name, (location,), data, folder=self.folder, proxies=self.proxies, redis_port=self.redis.port)
        node.launcher = self.nodes[NODES[0]].launcher
        return node

    def restart_spark(self) -> None:
        """Start the driver again and wait until it has committed something."""
        before = self.watch.version
        self.spark.start()
        wait_for_commits(self.watch, before + 1)

    def restart_spark_with_added(self) -> None:
        """Start the driver with another state variable; readers ask for it once every replica has it."""
        self.restart_spark()
        wait_for_commits(self.watch, self.watch.version + NEAR)  # what is near the end then has the variable
        added, self.subject = self.subject.added, replace(self.subject, added=frozenset())
        if not self.settle():
            for store in added:
                self.ask_also(store)

    def unsettled(self) -> str:
        """What is not as it is when nothing is broken; empty when all is well."""
        for service in (*self.nodes.values(), *self.routers.values()):
            if not service.is_running:
                return f"{service.name} does not run"
            if not service.is_ready:
                return f"{service.name} is not ready"
        for router in self.routers:
            reply = self._lag(router)
            if reply.status != 200:  # a router of a fleet has not heard of the application
                return f"{router}: {reply.body}"
            if why := unsettled_by(reply.body, self.subject, self.watch.version):
                return f"{router}: {why}"
        return ""

    def settle(self, limit_s: float | None = None) -> str:
        """Wait until all is well; returns what is not, when it does not get well in time."""
        until_s = time.monotonic() + (self.settle_limit_s if limit_s is None else limit_s)
        while (why := self.unsettled()) and time.monotonic() < until_s and "does not run" not in why:
            time.sleep(0.1)
        return why


def unsettled_by(report: Mapping[str, Any], subject: Subject, version: int) -> str:
    """What a router's report lacks: every node alive, every store, and two replicas of each partition near the end."""
    live = {node["node_id"] for node in report["nodes"] if node["live"]}
    if missing := set(NODES) - live:
        return f"{', '.join(sorted(missing))} not alive"
    if missing := subject.kinds.keys() - subject.added - {store["store"] for store in report["stores"]}:
        return f"no store {', '.join(sorted(missing))}"
    for store in report["stores"]:
        near: dict[int, set[str]] = {}
        for replica in store["partitions"]:
            current = replica["current_offset_position"]
            if current is not None and abs(current - version) <= NEAR:  # above: of a checkpoint that is no more
                near.setdefault(replica["partition"], set()).add(replica["role"])
        short = [partition for partition, roles in near.items() if not {"active", "standby"} <= roles]
        if len(near) < subject.partitions or short:
            return f"{store['store']}: no active or no standby near version {version} of {short or 'some partition'}"
    return ""


@contextmanager
def world(folder: Path, options: WorldOptions, record: Callable[[Seen], None]) -> Iterator[World]:
    """The whole world until the end of the block, which begins when all is well. `record` gets each commit."""
    with ExitStack() as stack:
        (folder / "logs").mkdir()
        proxies = Proxies(folder / "logs" / "proxies.log")
        stack.callback(proxies.end)
        kept = stack.enter_context(storage(options.storage, folder, APPLICATION, NODES, proxies))
        spark = stack.enter_context(
            spark_driver(
                kept,
                folder / "spark",
                state_format=options.state_format,
                every_ms=options.every_ms,
                subject=options.subject,
                snapshots_often=options.short_lived_bases,
                line=options.line,
            )
        )
        redis = stack.enter_context(redis_server(port=0))
        assert redis.port is not None
        disk = stack.enter_context(small_disk(folder / "small-disk"))
        clock = FakeClock(folder / "clock")
        served = ("--application-id", APPLICATION)
        routers = {
            name: router_of(name, served, folder=folder, proxies=proxies, redis_port=redis.port) for name in ROUTERS
        }
        data = {name: folder / "data" / name for name in NODES}
        if isinstance(disk, Path):
            data[NODE_WITH_SMALL_DISK] = disk
        nodes = {
            name: node_of(
                name, (kept.location_for(name),), data[name], folder=folder, proxies=proxies, redis_port=redis.port
            )
            for name in NODES
        }
        for name, node in nodes.items():
            node.variables = kept.variables_for(name)
        if options.signed:
            key = {"UNDERSTUDY_GOSSIP_KEY_FILE": str(_gossip_key(folder))}
            for router in routers.values():
                router.variables = key
            for node in nodes.values():
                node.variables = {**node.variables, **key, "UNDERSTUDY_REBALANCE_DELAY_MS": str(REBALANCE_DELAY_MS)}
        if options.short_lived_bases:
            for node in nodes.values():
                node.variables = {**node.variables, "UNDERSTUDY_OVERLAY_MAX_BYTES": str(SMALL_OVERLAY_BYTES)}
            stack.callback(BaseWatch(nodes.values(), record).end)
        nodes[NODE_WITH_FAKE_CLOCK].launcher = clock.launcher
        watch = CommitWatch(kept, record)
        stack.callback(watch.end)
        stack.callback(MemoryWatch((*nodes.values(), *routers.values()), record).end)
        made = World(options.subject, folder, kept, spark, redis, proxies, watch, nodes, routers, data, disk, clock)
        for service in routers.values():
            stack.callback(service.kill)
            service.start()
        spark.wait_until_it_runs()
        wait_for_commits(watch, 2)
        for service in nodes.values():
            stack.callback(service.kill)
            service.start()
        why = made.settle(120)
        assert not why, f"the world does not get well: {why}; its logs are in {folder / 'logs'}"
        yield made


def wait_for_commits(watch: CommitWatch, version: int) -> None:
    """Return when `version` is committed."""
    until_s = time.monotonic() + COMMIT_LIMIT_S
    while watch.version < version:
        assert time.monotonic() < until_s, f"Spark does not commit version {version}"
        time.sleep(0.05)


def redis_proxy(service: str) -> str:
    """The proxy between a node or router and Redis; that between routers and a node has the node's name."""
    return f"{service}-redis"


def _gossip_key(folder: Path) -> Path:
    key = folder / "gossip.key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    return key


def node_of(
    name: str, served: Sequence[str], data: Path, *, folder: Path, proxies: Proxies, redis_port: int
) -> Service:
    """A node, not started; `served` says what it serves."""
    port = free_port()
    arguments = [
        "node", *served, "--node-id", name, "--port", str(port), "--data-dir", str(data),
        "--advertise-port", str(proxies.open(name, port)),
        "--redis", f"redis://127.0.0.1:{proxies.open(redis_proxy(name), redis_port)}/0",
    ]  # fmt: skip
    return Service(name, arguments, folder / "logs" / f"{name}.log", port=port)


def router_of(name: str, served: Sequence[str], *, folder: Path, proxies: Proxies, redis_port: int) -> Service:
    """A router, not started; `served` says what it serves."""
    port = free_port()
    arguments = [
        "router", *served, "--port", str(port), "--data-dir", str(folder / "data" / name),
        "--redis", f"redis://127.0.0.1:{proxies.open(redis_proxy(name), redis_port)}/0",
    ]  # fmt: skip
    return Service(name, arguments, folder / "logs" / f"{name}.log", port=port)
