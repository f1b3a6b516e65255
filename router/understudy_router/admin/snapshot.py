"""All that a router knows at one moment, for all reports (pure: it takes tables, and returns a snapshot, in slices).

One gather serves all viewers. A node's heartbeat reports one thing of nearly all its tasks, so the cost of a gather
grows with nodes and with exceptions, not with replicas. Nodes are read one slice after another: each is as it was when
its slice was read.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy_router.admin.facts import Facts, NodeReader, NodeView
from understudy_router.admin.reads_served import Rates, StoreServed
from understudy_router.admin.replica_index import ReplicaIndex, index_replicas
from understudy_router.admin.summary import Totals, summed
from understudy_router.admin.trends import Trend
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.tables import TableEvent, Tables
from understudy_shared.auth.binding import Exposure
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.http.health import HealthReport
from understudy_shared.spark.times import utc_text

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class About:
    """The knowledge of a router besides its tables, and its time. `now_us` is wall time, for people only."""

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
class Snapshot:
    """An immutable snapshot. `nodes` are all nodes by id, `holders` those of the index by number."""

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
        """Return the facts of a replica."""
        return self.holders[self.index.node[replica]].of(replica)


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot, and what was seen over time until then: the value of which every report is made."""

    snapshot: Snapshot
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
    """The snapshot leases that nodes hold, as of a moment ago."""


def gather(
    tables: Tables, stores: Stores | None, about: About, index: ReplicaIndex | None = None
) -> Generator[None, None, Snapshot]:
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
    return Snapshot(
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
