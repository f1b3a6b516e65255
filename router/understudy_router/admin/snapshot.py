"""All that a router knows at one moment, for all reports (pure: it takes tables, and returns a snapshot, in slices).

One gather serves all viewers. A node's heartbeat reports one thing of nearly all its tasks, so the cost of a gather
grows with nodes and with exceptions, not with replicas. Nodes are read one slice after another: each is as it was when
its slice was read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field

from understudy_router.admin.facts import DEAD, RUNNING, Facts, NodeView, Standing
from understudy_router.admin.replica_index import ReplicaIndex, index_replicas
from understudy_router.admin.summary import Totals, summed
from understudy_router.cluster.candidates import NOTHING_OPEN
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.health import Health
from understudy_router.cluster.tables import TableEvent, Tables
from understudy_shared.auth.binding import Exposure
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Applied, Assignment, Heartbeat
from understudy_shared.cluster.view import DeadNode, NodeReport
from understudy_shared.spark.times import utc_text


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
    reader = _Reader(tables, index, previous, now_ms=about.now_ms, end=end if is_confirmed else None)
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


class _Reader:
    """The maker of the views of nodes, against one end."""

    def __init__(
        self, tables: Tables, index: ReplicaIndex, previous: Assignment | None, *, now_ms: float, end: int | None
    ) -> None:
        self._tables = tables
        self._index = index
        self._previous = previous
        self._now_ms = now_ms
        self._end = end

    def view(self, report: NodeReport) -> Generator[None, None, NodeView]:
        """Return the view of a live node. A node with many exceptions takes several slices."""
        beat, age_ms = report.heartbeat, round(report.age_ms(self._now_ms))
        health, is_silent = self._tables.health.of(beat.node_id), self._tables.is_silent(report, self._now_ms)
        is_doubtful = beat.is_asked_last or is_silent or health.health is not Health.OK
        own: dict[int, Facts] = {}
        for replica, applied in self._exceptions(beat):
            if replica is not None and replica not in own:
                own[replica] = self._facts(beat, applied, age_ms, is_doubtful=is_doubtful)
            yield
        return NodeView(
            node_id=beat.node_id,
            endpoint=beat.endpoint.host_info(),
            facts=self._facts(beat, beat.applied, age_ms, is_doubtful=is_doubtful),
            own=own,
            report=report,
            health=health,
            age_ms=age_ms,
            is_silent=is_silent,
        )

    def _exceptions(self, beat: Heartbeat) -> Iterator[tuple[int | None, Applied]]:
        """Yield the replicas of a node that differ from its others, and what is reported of them. A replica that the
        node does not hold here is `None`.
        """
        index, holds = self._index, self._holds(beat)
        number = index.number_of.get(beat.node_id)
        if number is None:
            return
        for key, applied in beat.exceptions.items():
            yield index.replica_by_key(key, number), applied
        if holds is not None:
            for replica in index.of_node[number]:
                yield None if holds(index.key(index.task[replica])) else replica, NOTHING_OPEN

    def dead(self, dead: DeadNode) -> NodeView:
        facts = Facts(DEAD, error=dead.why)
        age_ms = round(self._now_ms - dead.died_ms)
        return NodeView(dead.heartbeat.node_id, dead.heartbeat.endpoint.host_info(), facts, dead=dead, age_ms=age_ms)

    def unheard(self, node_id: str) -> NodeView:
        """Return the view of a node that only the assignment names. Without an address it counts as dead."""
        assignment = self._index.assignment
        endpoint = None if assignment is None else assignment.members.get(node_id)
        if endpoint is None:
            return NodeView(node_id, HostInfo("unknown", 0), Facts(DEAD))
        return NodeView(node_id, endpoint.host_info(), Facts(None, standing=Standing.UNHEARD))

    def _holds(self, beat: Heartbeat) -> Callable[[str], bool] | None:
        """Return a test of whether a heartbeat reports on a task of its node (see `candidates.applied_of`); `None` when
        it reports on all.
        """
        if beat.held is not None:
            return frozenset(beat.held).__contains__
        assignment, previous = self._index.assignment, self._previous
        order = (beat.term, beat.epoch)
        if previous is None or assignment is None or order == assignment.order or order != previous.order:
            return None
        tasks = previous.tasks
        return lambda key: key in tasks and beat.node_id in tasks[key].holders

    def _facts(self, beat: Heartbeat, applied: Applied, age_ms: int, *, is_doubtful: bool) -> Facts:
        version, end = applied.version, self._end
        is_known = version is not None and age_ms <= self._tables.end_expiry_ms
        return Facts(
            state=applied.state,
            version=version,
            offset_lag=max(0, end - version) if is_known and end is not None and version is not None else None,
            time_lag_ms=applied.time_lag_ms + age_ms if is_known and applied.time_lag_ms is not None else None,
            report_age_ms=age_ms,
            error=applied.error,
            restore=applied.restore,
            standing=self._standing(beat, applied, is_doubtful=is_doubtful),
        )

    def _standing(self, beat: Heartbeat, applied: Applied, *, is_doubtful: bool) -> Standing:
        assignment = self._index.assignment
        fits = assignment is None or (
            beat.lineage == assignment.lineage and beat.partitions in {None, assignment.partitions}
        )
        if applied.version is None or not fits:
            return Standing.CLOSED
        if applied.state != RUNNING:
            return Standing.BEHIND
        return Standing.DOUBTFUL if is_doubtful else Standing.CAUGHT_UP
