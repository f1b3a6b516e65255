"""Several queries in one cluster: nodes and routers serve them all; each has a Spark and a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from tests.support.bus.redis_server import redis_server
from tests.support.cluster.served_fleet import write_applications
from tests.support.spark.queries import wait_until
from tests.system.proof.commit_watch import CommitWatch
from tests.system.proof.fake_clock import FakeClock
from tests.system.proof.history import Seen
from tests.system.proof.processes import Proxies, Service
from tests.system.proof.spark_driver import spark_driver
from tests.system.proof.storage import storage
from tests.system.proof.world import NODES, ROUTERS, World, WorldOptions, node_of, router_of, wait_for_commits

START_LIMIT_S = 240.0
"""Several queries start at once."""

LEAVE_LIMIT_S = 60.0

Record = Callable[[str, Seen], None]
"""Gets each commit, and of which application it is."""


@dataclass(slots=True)
class FleetWorld:
    """A world for each application, by its id. They have nodes, routers, Redis and proxies in common."""

    worlds: Mapping[str, World]
    files: Mapping[str, Path]
    """Each node's file of applications."""
    record: Record

    def serve(self, *applications: str) -> None:
        """Have every node serve these, and no others."""
        for node, path in self.files.items():
            places = {each: self.worlds[each].storage.location_for(node) for each in applications}
            write_applications(path, **places)

    def settle(self, limit_s: float | None = None) -> None:
        """Return when all is well with every application. AssertionError when that takes too long."""
        for application, one in self.worlds.items():
            why = one.settle(limit_s)
            assert not why, f"{application}: {why}"

    def let_go(self, application: str) -> None:
        """Have every node serve all but one, and return when none of them lists it."""
        self.serve(*(each for each in self.worlds if each != application))
        nodes = self.worlds[application].nodes.values()
        gone = partial(_is_gone, nodes, application)
        wait_until(gone, what=f"every node to let {application} go", limit_s=LEAVE_LIMIT_S)

    def begin_again(self, application: str) -> None:
        """Delete the checkpoint, whose query has ended, and start the query there anew, with other rows."""
        one = self.worlds[application]
        one.spark.kill()
        one.watch.end()
        rmtree(one.storage.location)
        one.watch = self._watch(application)
        one.spark.take_other_rows()
        one.spark.start()
        wait_for_commits(one.watch, 2)

    def _watch(self, application: str) -> CommitWatch:
        return CommitWatch(self.worlds[application].storage, partial(self.record, application))


@contextmanager
def fleet_world(folder: Path, queries: Mapping[str, WorldOptions], record: Record) -> Iterator[FleetWorld]:
    """Run the queries, by application, until the end of the block, which begins when all is well with each."""
    with ExitStack() as stack:
        (folder / "logs").mkdir()
        proxies = Proxies(folder / "logs" / "proxies.log")
        stack.callback(proxies.end)
        redis = stack.enter_context(redis_server(port=0))
        assert redis.port is not None
        links: dict[str, Any] = {"folder": folder, "proxies": proxies, "redis_port": redis.port}
        files = {name: folder / f"{name}.toml" for name in NODES}
        data = {name: folder / "data" / name for name in NODES}
        nodes = {name: node_of(name, ("--applications", str(files[name])), data[name], **links) for name in NODES}
        routers = {name: router_of(name, ("--applications", "*"), **links) for name in ROUTERS}
        worlds: dict[str, World] = {}
        for application, options in queries.items():
            own = folder / application
            own.mkdir()
            kept = stack.enter_context(storage(options.storage, own, application, NODES, proxies))
            for name, node in nodes.items():
                node.variables = {**node.variables, **kept.variables_for(name)}
            spark = spark_driver(
                kept,
                own / "spark",
                state_format=options.state_format,
                every_ms=options.every_ms,
                subject=options.subject,
            )
            worlds[application] = World(
                options.subject,
                own,
                kept,
                stack.enter_context(spark),
                redis,
                proxies,
                CommitWatch(kept, partial(record, application)),
                nodes,
                routers,
                data,
                "the nodes of a fleet have none",
                FakeClock(own / "clock"),
                application=application,
            )
            stack.callback(_end_watch, worlds[application])
        made = FleetWorld(worlds, files, record)
        made.serve(*worlds)
        _start(stack, routers.values())
        for one in worlds.values():
            one.spark.wait_until_it_runs()
            wait_for_commits(one.watch, 2)
        _start(stack, nodes.values())
        made.settle(START_LIMIT_S)
        yield made


def _start(stack: ExitStack, services: Iterable[Service]) -> None:
    for service in services:
        stack.callback(service.kill)
        service.start()


def _end_watch(one: World) -> None:
    one.watch.end()  # the present one: a query that began again has another


def _is_gone(nodes: Iterable[Service], application: str) -> bool:
    listed: list[Any] = [node.get("/v1/applications").body for node in nodes]
    return all(application not in {each["application"] for each in body["applications"]} for body in listed)
