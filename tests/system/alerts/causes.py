"""The faults that alerts are there for: what is done to real processes, and undone at the end of the block."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from tests.system.alerts.watched_world import WatchedWorld, dead, living_otherwise
from tests.system.proof.faults import active_node
from tests.system.proof.keys import START, STORE, slot_text
from tests.system.proof.proxy import CUT, Toxics
from tests.system.proof.views import Spoil
from tests.system.proof.world import NODES, ROUTERS, redis_proxy

from understudy_shared.reads.tokens import decode_position

VICTIM = NODES[0]
ROUTER = ROUTERS[1]
MAX_RESTARTS = 12
LATE_S = 1.5
FAR_AHEAD = 1_000_000
"""Versions; no query gets there."""

_STATE_FILE = re.compile(r"(\d+)(?:_[^.]*)?\.(changelog|delta|snapshot|zip)")


@dataclass(frozen=True, slots=True)
class Cause:
    """A fault, and the alerts that fire while it lasts."""

    alerts: frozenset[str]
    fault: Callable[[WatchedWorld], AbstractContextManager[None]]


@contextmanager
def nodes_answer_nobody(watched: WatchedWorld) -> Iterator[None]:
    """What is sent to the nodes vanishes, while Redis still has their heartbeats."""
    with watched.toxic(CUT, *NODES):
        yield


@contextmanager
def node_answers_500(watched: WatchedWorld) -> Iterator[None]:
    """It lives, and its answers are of no use."""
    with watched.toxic(Toxics(answer=500), VICTIM):
        yield


@contextmanager
def checkpoint_is_gone(watched: WatchedWorld) -> Iterator[None]:
    """For all nodes: the storage is away."""
    views = watched.world.storage.views.values()
    for view in views:
        view.vanish()
    try:
        yield
    finally:
        for view in views:
            view.heal()


@contextmanager
def redis_and_an_active_die(watched: WatchedWorld) -> Iterator[None]:
    """Nobody is there to promote a standby, until Redis is back; the node is not needed for that."""
    redis, node = watched.world.redis, watched.world.nodes[active_node(watched.world, VICTIM)]
    redis.kill()
    with dead(node):
        try:
            yield
        finally:
            redis.start()
        watched.wait_for({"UnderstudyPartitionWithoutActive"}, what="Redis is back, the node is not", fire=False)


@contextmanager
def node_dies(watched: WatchedWorld) -> Iterator[None]:
    """And is not replaced for `rebalance_delay_ms`."""
    with dead(watched.world.nodes[VICTIM]):
        yield


@contextmanager
def query_stops(watched: WatchedWorld) -> Iterator[None]:
    """Its driver dies, and nothing else."""
    watched.world.spark.kill()
    try:
        yield
    finally:
        watched.world.restart_spark()


@contextmanager
def redis_refuses_writes(watched: WatchedWorld) -> Iterator[None]:
    """As one that wants a replica and has none."""
    redis = watched.world.redis
    redis.command("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        yield
    finally:
        redis.command("CONFIG", "SET", "min-replicas-to-write", 0)


@contextmanager
def nothing_runs(watched: WatchedWorld) -> Iterator[None]:
    """All services die."""
    with ExitStack() as stack:
        for service in (*watched.world.routers.values(), *watched.world.nodes.values()):
            stack.enter_context(dead(service))
        yield


@contextmanager
def router_is_cut_off(watched: WatchedWorld) -> Iterator[None]:
    """A router reaches neither Redis nor a node; meanwhile an active dies, so that a standby is promoted at once."""
    refused, active = Toxics(refuse=True), watched.world.nodes[active_node(watched.world, VICTIM)]
    with watched.toxic(refused, redis_proxy(ROUTER), *NODES), dead(active):
        yield


@contextmanager
def storage_is_slow(watched: WatchedWorld) -> Iterator[None]:
    """One node finds the files of a version some time after the commit that names them."""
    with _spoiled(watched, _late_above(watched.world.watch.version + 1)):
        yield


@contextmanager
def router_has_too_little_memory(watched: WatchedWorld) -> Iterator[None]:
    """Its limit is below what it needs for itself."""
    with living_otherwise(watched.world.routers[ROUTER], "--memory-limit-bytes", "16MiB"):
        yield


@contextmanager
def router_is_exposed(watched: WatchedWorld) -> Iterator[None]:
    """It listens on every interface, and asks for no credential."""
    with living_otherwise(watched.world.routers[ROUTER], "--host", "0.0.0.0", "--insecure-bind"):
        yield


@contextmanager
def restore_finds_nothing(watched: WatchedWorld) -> Iterator[None]:
    """A node that lost its disk finds no file of the state."""
    with ExitStack() as stack:
        with dead(watched.world.nodes[VICTIM]):
            shutil.rmtree(watched.world.folder / "data" / VICTIM)
            stack.enter_context(_spoiled(watched, _hidden_above(0)))
        yield


@contextmanager
def router_starts_again_and_again(watched: WatchedWorld) -> Iterator[None]:
    """As one that is killed for its memory does. Each life is long enough to be scraped."""
    router, started = watched.world.routers[ROUTER], "process_start_time_seconds"
    for _ in range(MAX_RESTARTS):
        before = watched.scraped(started, router)
        with dead(router):
            pass
        watched.wait_for_scrape(started, router, lambda found, before=before: found != before)  # type: ignore[misc]
        if "UnderstudyRestarts" in watched.prometheus.firing():
            break
    yield


@contextmanager
def router_forgets_bounds(watched: WatchedWorld) -> Iterator[None]:
    """A router of a release with a bug. A reader asks it for a position far ahead, and gets what there is."""
    router = watched.world.routers[ROUTER]
    target = f"/v1/stores/{STORE}/keys/{quote(slot_text(int(START.timestamp())))}/w0"
    with living_otherwise(router, launcher=("tests.system.alerts.forgetful_router",)):
        watched.wait_until_well()
        watched.wait_for_scrape("understudy_bound_violations_total", router, lambda found: found == 0)
        position = decode_position(str(router.get(target).body["position"]))
        ahead = replace(position, version=position.version + FAR_AHEAD, committed_at_us=None).encode()
        assert router.get(f"{target}?min_position={ahead}").status in {200, 404}
        yield


@contextmanager
def files_are_missing(watched: WatchedWorld) -> Iterator[None]:
    """One node finds no new changelogs and snapshots. The alert compares with a minute, so this takes one."""
    with _spoiled(watched, _hidden_above(watched.world.watch.version + 1)):
        yield


CAUSES = (
    Cause(frozenset({"UnderstudyReadsFail", "UnderstudyRetryBudgetSpent"}), nodes_answer_nobody),
    Cause(frozenset({"UnderstudyNodeQuarantined"}), node_answers_500),
    Cause(
        frozenset({"UnderstudyCheckpointUnreadable", "UnderstudyLagUnknown", "UnderstudyReadsRefused"}),
        checkpoint_is_gone,
    ),
    Cause(frozenset({"UnderstudyBusAway", "UnderstudyPartitionWithoutActive"}), redis_and_an_active_die),
    Cause(frozenset({"UnderstudyNodeMissing", "UnderstudyRedundancyLost", "UnderstudyTargetDown"}), node_dies),
    Cause(frozenset({"UnderstudyTargetsAbsent"}), nothing_runs),
    Cause(frozenset({"UnderstudyQueryStopped"}), query_stops),
    Cause(frozenset({"UnderstudyDegraded"}), redis_refuses_writes),
    Cause(frozenset({"UnderstudyAssignmentsDiffer"}), router_is_cut_off),
    Cause(frozenset({"UnderstudyFreshnessPoor"}), storage_is_slow),
    Cause(frozenset({"UnderstudyReplicaBehind"}), files_are_missing),
    Cause(frozenset({"UnderstudyMemoryShort"}), router_has_too_little_memory),
    Cause(frozenset({"UnderstudyExposed"}), router_is_exposed),
    Cause(frozenset({"UnderstudyRestoreStuck"}), restore_finds_nothing),
    Cause(frozenset({"UnderstudyRestarts"}), router_starts_again_and_again),
    Cause(frozenset({"UnderstudyBoundViolated"}), router_forgets_bounds),
)

OF_CERTIFICATES = frozenset({"UnderstudyCertificateExpires"})
"""The services of the watched world speak no TLS. promtool claims of this rule that it fires and clears."""

OF_FLEETS = frozenset({"UnderstudyApplicationNotServed"})
"""The watched world has one application; a fleet has a test of its own."""

OF_OTHER_READS = frozenset({"UnderstudyCallsFail"})
"""The readers of the watched world only look up. promtool claims of this rule that it fires and clears."""

OF_THE_SOURCE = frozenset({"UnderstudySourceInputAway"})
"""The aligned source is no part of the cluster, and has a test of its own."""


@contextmanager
def _spoiled(watched: WatchedWorld, spoil: Spoil) -> Iterator[None]:
    """The checkpoint as the victim sees it."""
    view = watched.world.storage.views[VICTIM]
    view.spoil(spoil)
    try:
        yield
    finally:
        view.heal()


def _hidden_above(version: int) -> Spoil:
    """Hide changelogs and snapshots of later versions."""

    def spoil(name: str, _path: Path, _copy: Path) -> bool:
        found = _STATE_FILE.fullmatch(name)
        return found is not None and int(found[1]) > version

    return spoil


def _late_above(version: int) -> Spoil:
    """Let changelogs of later versions appear later, and never a snapshot, which would help."""

    def spoil(name: str, path: Path, copy: Path) -> bool:
        found = _STATE_FILE.fullmatch(name)
        if found is None or int(found[1]) <= version:
            return False
        if found[2] == "changelog":
            appear = threading.Timer(LATE_S, _link, (path, copy))
            appear.daemon = True
            appear.start()
        return True

    return spoil


def _link(path: Path, copy: Path) -> None:
    with suppress(OSError):  # it was removed meanwhile
        copy.hardlink_to(path)
