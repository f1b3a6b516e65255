"""All that a router knows at one moment, for all reports (pure: it takes tables, and returns a snapshot, in slices).

One snapshot serves all viewers. A node's heartbeat reports the same for nearly all its tasks, so the cost of a snapshot
grows with nodes and exceptions, not with replicas. Nodes are read slice by slice: each is as it was when its slice was
read.

Replicas are summed in slices, too: counts and worst lags by operator, tasks without an open replica. Nodes with uniform
replicas are counted at once; only tasks with an unhealthy replica are examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from understudy_router.admin.facts import (
    RUNNING,
    WARMUP,
    Facts,
    NodeReader,
    NodeView,
    ReplicaIndex,
    Standing,
    index_replicas,
)
from understudy_router.admin.rates import Rates, StoreServed, Trend
from understudy_router.cluster.catalogue import CatalogueStores
from understudy_router.cluster.tables import TableEvent, Tables
from understudy_shared.auth.access import Exposure
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.http.health import HealthReport
from understudy_shared.spark.temporal import utc_text

Document = dict[str, Any]


MAX_ERRORS = 100


@dataclass(slots=True)
class Summary:
    """The sums of one operator. Lags are of live replicas without warm-ups; None: all of these are unknown."""

    by_role: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Live replicas by role."""
    running: int = 0
    restoring: int = 0
    """Live replicas that lag far, or are not open yet."""
    dead: int = 0
    unknown: int = 0
    """Live replicas of unknown lag, without warm-ups."""
    unserved: int = 0
    thin: int = 0
    broken: int = 0
    """Live replicas with an error."""
    worst_lag: int | None = None
    worst_lag_ms: int | None = None
    worst: int | None = None
    """A replica that has the worst lag."""

    @property
    def replicas(self) -> int:
        return sum(self.by_role) + self.dead

    @property
    def known_lag(self) -> int | None:
        """The worst lag in versions; `None` while any lag is unknown."""
        return None if self.unknown else self.worst_lag

    @property
    def known_lag_ms(self) -> int | None:
        """The worst lag in time; `None` while any lag is unknown."""
        return None if self.unknown else self.worst_lag_ms


class Totals(NamedTuple):
    """The sums of all operators by id, and the tasks that are not well, ascending."""

    summaries: Mapping[int, Summary]
    unserved: tuple[int, ...]
    """Tasks without an open replica."""
    thin: tuple[int, ...]
    """Tasks that more than one node should have, with an open replica, but with fewer than two that are caught up."""
    unsettled: Collection[int]
    """Tasks that several nodes have, with fewer than two caught-up replicas that stay."""
    errors: tuple[str, ...] = ()
    """The errors of live replicas: the first MAX_ERRORS."""


def summed(index: ReplicaIndex, holders: Sequence[NodeView]) -> Generator[None, None, Totals]:
    """Sum all replicas up."""
    sums = _Sums(index)
    for number, view in enumerate(holders):
        yield from sums.add(number, view)
        yield
    totals = yield from _examined(index, holders, sums.doubtful, sums.summaries)
    return totals._replace(errors=tuple(sums.errors))


class _Sums:
    """The sums so far, and the tasks with a replica that is not well."""

    def __init__(self, index: ReplicaIndex) -> None:
        self.summaries = {operator_id: Summary() for operator_id in index.tasks_of}
        self.doubtful: set[int] = set()
        self.errors: list[str] = []
        self._index = index

    def add(self, number: int, view: NodeView) -> Iterator[None]:
        """Add the replicas of a node: those that differ one by one, all others by their number."""
        index = self._index
        own: Counter[tuple[int, int]] = Counter()
        for replica, facts in view.own.items():
            task = index.task[replica]
            kind = (index.operator_id[task], index.role[replica])
            own[kind] += 1
            self._count(kind, facts, 1, replica)
            if facts.standing is not Standing.CAUGHT_UP:
                self.doubtful.add(task)
            yield
        for kind, replicas in index.duties[number].items():
            alike = len(replicas) - own[kind]
            if alike:
                first = next(replica for replica in replicas if replica not in view.own)
                self._count(kind, view.facts, alike, first)
        if view.facts.standing is not Standing.CAUGHT_UP:
            self.doubtful.update(index.task[replica] for replica in index.of_node[number])

    def _count(self, kind: tuple[int, int], facts: Facts, count: int, first: int) -> None:
        """Add so many replicas of an operator and a role that have these facts. `first` is one of them."""
        operator_id, role = kind
        summary = self.summaries[operator_id]
        if not facts.standing.is_live:
            summary.dead += count
            return
        summary.by_role[role] += count
        summary.running += count * (facts.state == RUNNING)
        summary.restoring += count * (facts.state in {"RESTORING", "CREATED"})
        if facts.error:
            summary.broken += count
            if len(self.errors) < MAX_ERRORS:
                index = self._index
                stores = " and ".join(index.stores_of[operator_id])
                partition, node_id = index.name(first)
                self.errors.append(f"{stores} {partition} on {node_id}: {facts.error}")
        if role == WARMUP:
            return
        if facts.offset_lag is None:
            summary.unknown += count
        elif summary.worst_lag is None or facts.offset_lag > summary.worst_lag:
            summary.worst_lag, summary.worst = facts.offset_lag, first
        if facts.time_lag_ms is not None:
            summary.worst_lag_ms = max(facts.time_lag_ms, summary.worst_lag_ms or 0)


def _examined(
    index: ReplicaIndex, holders: Sequence[NodeView], doubtful: Collection[int], summaries: Mapping[int, Summary]
) -> Generator[None, None, Totals]:
    """Return the tasks that are not well, among those with a replica that is not well. Count them in `summaries`, too.

    There are few kinds of tasks, by the standings of their replicas, so each kind is judged once: when a bus is lost,
    no replica of the cluster is well.
    """
    unserved: list[int] = []
    thin: list[int] = []
    unsettled: list[int] = []
    judged: dict[tuple[tuple[Standing, ...], bytes], tuple[bool, bool, bool]] = {}
    for task in chain(index.unheld, doubtful):
        replicas = index.holders(task)
        standings = tuple(holders[index.node[replica]].of(replica).standing for replica in replicas)
        kind = (standings, bytes(index.role[replicas.start : replicas.stop]))
        if kind not in judged:
            judged[kind] = _judged(*kind)
        is_unserved, is_thin, is_unsettled = judged[kind]
        if is_unserved:
            unserved.append(task)
            summaries[index.operator_id[task]].unserved += 1
        elif is_thin:
            thin.append(task)
            summaries[index.operator_id[task]].thin += 1
        if is_unsettled:
            unsettled.append(task)
        yield
    unserved.sort()
    yield
    thin.sort()
    yield
    return Totals(summaries, tuple(unserved), tuple(thin), unsettled)


def _judged(standings: Sequence[Standing], roles: bytes) -> tuple[bool, bool, bool]:
    """Return whether a task is unserved, thin and unsettled, by the standings and the roles of its replicas."""
    wanted = len(roles) - roles.count(WARMUP)
    is_unserved = not any(standing.is_open for standing in standings)
    is_thin = wanted > 1 and sum(standing >= Standing.DOUBTFUL for standing in standings) < 2
    return is_unserved, is_thin, len(standings) > 1 and standings.count(Standing.CAUGHT_UP) < 2


@dataclass(frozen=True, slots=True)
class About:
    """The knowledge of a router apart from its tables, and its time. `now_us` is wall time, for people only."""

    tick: int
    now_ms: float
    now_us: int
    application_id: str
    router: HostInfo
    unheard: str | None = None
    """The fault of a bus that is reachable."""
    bus_lost_why: str | None = None
    not_ready: tuple[str, ...] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    """The reasons why the process of the router is degraded, by cause."""
    router_id: str = ""
    exposure: Exposure | None = None
    """The part of the router that other machines can reach."""

    @property
    def view_of(self) -> dict[str, str]:
        """Return address and name of the router, as reports show them."""
        return {"router": f"{self.router.host}:{self.router.port}", "router_id": self.router_id}

    def wall_text(self, at_ms: float) -> str | None:
        """Convert a moment of this machine's monotonic clock to wall time."""
        return utc_text(self.now_us - round((self.now_ms - at_ms) * 1000))


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """An immutable snapshot. `nodes` are all nodes by id, `holders` the index's by number."""

    about: About
    index: ReplicaIndex
    nodes: Mapping[str, NodeView]
    holders: tuple[NodeView, ...]
    lineage: str | None
    catalogue: str | None
    end_version: int
    """The newest end version; 0 before any report."""
    end_confirmed: bool
    end_age_ms: int | None
    """Milliseconds since a node last confirmed the end; `None` when no node confirms it."""
    events: tuple[TableEvent, ...]
    bus_lost_why: str | None
    """The reason why the tables get no messages from the bus."""
    changes: int
    """The value of `Tables.changes` when the snapshot was begun."""
    totals: Totals

    @property
    def tick(self) -> int:
        return self.about.tick

    @property
    def assignment(self) -> Assignment | None:
        return self.index.assignment

    @property
    def is_reassigned(self) -> bool:
        """Whether tasks move when a node is gone: the bus must carry what the nodes say."""
        return self.bus_lost_why is None and self.about.bus_lost_why is None and self.about.unheard is None

    @property
    def heartbeats(self) -> list[Heartbeat]:
        """The last heartbeats of the live nodes."""
        return [view.heartbeat for view in self.nodes.values() if view.heartbeat is not None]

    @property
    def freshness(self) -> tuple[int | None, int | None]:
        """The p50 and p99 of the time from a commit until it is visible, in ms, over the nodes that report it: the
        median of their p50, the worst of their p99.
        """
        said = [beat.freshness for beat in self.heartbeats if beat.freshness is not None]
        halves = sorted(each.p50_ms for each in said)
        return (halves[len(halves) // 2], max(each.p99_ms for each in said)) if said else (None, None)

    def facts(self, replica: int) -> Facts:
        return self.holders[self.index.node[replica]].of(replica)


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot, and the observations over time until then: the input of every report."""

    snapshot: ClusterSnapshot
    rates: Rates = field(default_factory=Rates)
    staleness: Document = field(default_factory=dict)
    """The ages of the answers since the router started, as a histogram."""
    served: Mapping[str, StoreServed] = field(default_factory=dict)
    """The reads of the readers, by store."""
    trends: Mapping[str, Trend] = field(default_factory=dict)
    usual_commit_ms: float | None = None
    silent_ms: float = 0.0
    """Milliseconds since the end last changed."""
    restores: Sequence[Document] = ()
    disagreements: Sequence[Document] = ()
    health: HealthReport = field(default_factory=lambda: HealthReport(()))
    """The judgement of the indicators of all of this."""
    events: Sequence[Document] = ()
    snapshots: Sequence[Document] = ()
    """The snapshot leases that nodes held just now."""


def gather(
    tables: Tables, stores: CatalogueStores | None, about: About, index: ReplicaIndex | None = None
) -> Generator[None, None, ClusterSnapshot]:
    """Take the snapshot of now. `index` is the last one, which is used again while it fits."""
    assignment, previous, changes = tables.assignment, tables.previous, tables.changes
    if index is None or index.assignment is not assignment or index.stores is not stores:
        index = yield from index_replicas(assignment, stores)
    lineage, end = tables.lineage, tables.end_version
    is_confirmed, catalogue = tables.end_confirmed(about.now_ms), tables.catalogue_digest
    bus_lost_why = tables.bus_lost_why
    reader = NodeReader(tables, index, previous, now_ms=about.now_ms, end=end if is_confirmed else None)
    views: dict[str, NodeView] = {}
    confirmed: list[float] = []
    for report in list(tables.nodes.values()):
        beat = report.heartbeat
        views[beat.node_id] = yield from reader.view(report)
        if beat.end_age_ms is not None and beat.lineage == lineage:
            confirmed.append(report.age_ms(about.now_ms) + beat.end_age_ms)
        yield
    for node_id, dead in list(tables.dead.items()):
        views.setdefault(node_id, reader.dead(dead))
    holders = tuple(views.get(node_id) or reader.unheard(node_id) for node_id in index.node_ids)
    yield
    totals = yield from summed(index, holders)
    return ClusterSnapshot(
        about=about,
        index=index,
        nodes=dict(sorted(views.items(), key=lambda each: (each[1].report is None, each[0]))),
        holders=holders,
        lineage=lineage,
        catalogue=catalogue,
        end_version=end,
        end_confirmed=is_confirmed,
        end_age_ms=round(min(confirmed)) if confirmed else None,
        events=tuple(tables.events),
        bus_lost_why=bus_lost_why,
        changes=changes,
        totals=totals,
    )
