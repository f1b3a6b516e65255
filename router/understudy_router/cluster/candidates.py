"""The replicas of one task as the tables know them: node, role, version, and the age of the report (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from understudy_router.cluster.health import Health
from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Heartbeat
from understudy_shared.cluster.view import NodeReport

CandidateRole = Literal["active", "standby", "warmup"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica. `offset_lag` is measured against the newest reported end, None while unknown.

    `time_lag_ms` is what the node measured plus the age of its report: an upper bound. `version` is None when nothing
    of it is open, or nothing is known of it.
    """

    node_id: str
    endpoint: HostInfo
    role: CandidateRole
    state: str | None
    version: int | None
    offset_lag: int | None
    time_lag_ms: int | None
    report_age_ms: int | None
    is_live: bool
    """Whether it lives; False: it died or left, and has not come back."""
    is_heard: bool
    """Whether this router ever heard of it."""
    is_silent: bool = False
    """Whether it was silent on Redis for so long that it may be dead, and has not been asked yet."""
    health: Health = Health.OK
    health_why: str = ""
    """The reason why it is suspect or quarantined."""
    is_draining: bool = False
    """Whether its node drains, leaves, or has failed: asked late."""
    standing: str = ""
    """The state that its node reports; "" before its first report."""
    has_lineage: bool = True
    """Whether it follows the history in use."""
    lineage: str | None = None
    """The history that it follows, None while that is not known."""
    is_fork: bool = False
    """Whether it follows another history of the checkpoint than the cluster."""
    has_layout: bool = True
    """Whether it serves the layout of the assignment."""
    error: str | None = None
    has_left: bool = False
    """Whether it is not live because it said farewell."""
    has_endpoint: bool = True
    """Whether its address is known."""


def candidates_of(tables: Tables, operator_id: int, partition: int, now_ms: float) -> tuple[Candidate, ...]:
    """Return every replica of a task by the assignment, the active first; empty before there is an assignment."""
    assignment = tables.assignment
    task = f"{operator_id}_{partition}"
    duty = None if assignment is None else assignment.tasks.get(task)
    if assignment is None or duty is None:
        return ()
    end = tables.end_version if tables.end_confirmed(now_ms) else None
    return tuple(_candidate(tables, assignment, duty, task, node_id, end, now_ms) for node_id in duty.holders)


def basis_of(tables: Tables, holders: Sequence[str], now_ms: float) -> tuple[object, ...]:
    """Return what the candidates on these nodes depend on, except the ages of their reports."""
    end = tables.end_version if tables.end_confirmed(now_ms) else None
    return (tables.changes, end, *map(tables.nodes.get, holders))


def _candidate(  # noqa: PLR0917  # everything there is to know, once
    tables: Tables,
    assignment: Assignment,
    duty: AssignedTask,
    task: str,
    node_id: str,
    end: int | None,
    now_ms: float,
) -> Candidate:
    role: CandidateRole = "active" if node_id == duty.active else "standby" if node_id in duty.standbys else "warmup"
    node = tables.nodes.get(node_id)
    if node is None:
        return _unheard(tables, assignment, node_id, role)
    applied = applied_of(tables, node, task)
    age_ms = round(node.age_ms(now_ms))
    health, health_why = tables.health.of(node_id)
    offset_lag, time_lag_ms = lags_of(applied, age_ms, end, tables.end_expiry_ms)
    return Candidate(
        node_id=node_id,
        endpoint=node.heartbeat.endpoint.host_info(),
        role=role,
        state=applied.state,
        version=applied.version,
        offset_lag=offset_lag,
        time_lag_ms=time_lag_ms,
        report_age_ms=age_ms,
        is_live=True,
        is_heard=True,
        is_silent=tables.is_silent(node, now_ms),
        health=health,
        health_why=health_why,
        is_draining=node.heartbeat.is_asked_last,
        standing=node.heartbeat.standing,
        has_lineage=node.heartbeat.lineage == assignment.lineage,
        lineage=node.heartbeat.lineage,
        is_fork=node_id in tables.forks,
        has_layout=node.heartbeat.partitions in {None, assignment.partitions},
        error=applied.error,
    )


def _unheard(tables: Tables, assignment: Assignment, node_id: str, role: CandidateRole) -> Candidate:
    """Return a node that the assignment names and that is not among the live nodes."""
    dead = tables.dead.get(node_id)
    endpoint = dead.heartbeat.endpoint if dead is not None else assignment.members.get(node_id)
    return Candidate(
        node_id=node_id,
        endpoint=HostInfo("unknown", 0) if endpoint is None else endpoint.host_info(),
        role=role,
        state=None,
        version=None,
        offset_lag=None,
        time_lag_ms=None,
        report_age_ms=None,
        is_live=dead is None and endpoint is not None,
        is_heard=dead is not None,
        error=None if dead is None else dead.why,
        has_left=dead is not None and dead.said_farewell,
        has_endpoint=endpoint is not None,
    )


def lags_of(applied: Applied, age_ms: int, end: int | None, expiry_ms: float) -> tuple[int | None, int | None]:
    """Return how far a replica is behind, in versions and in ms; both are unknown by a report older than its expiry."""
    version, time_lag_ms = applied.version, applied.time_lag_ms
    if version is None or age_ms > expiry_ms:
        return None, None
    offset_lag = None if end is None else max(0, end - version)
    return offset_lag, None if time_lag_ms is None else time_lag_ms + age_ms


NOTHING_OPEN = Applied(version=None, state="CREATED")
"""The state of a replica that its node does not report."""


def applied_of(tables: Tables, node: NodeReport, task: str) -> Applied:
    """Return a node's progress with a task. A replica that it does not hold, or not yet, has no version."""
    beat = node.heartbeat
    exception = beat.exceptions.get(task)
    if exception is not None:
        return exception
    return beat.applied if _holds(tables, beat, task) else NOTHING_OPEN


def _holds(tables: Tables, beat: Heartbeat, task: str) -> bool:
    """Whether a node holds a task: a heartbeat is about the tasks that its own epoch gives its node; if the epoch is
    unknown here, assume that it holds the task, because the node itself refuses otherwise.
    """
    if beat.held is not None:
        return task in beat.held
    for assignment in (tables.assignment, tables.previous):
        if assignment is not None and assignment.order == (beat.term, beat.epoch):
            duty = assignment.tasks.get(task)
            return duty is not None and beat.node_id in duty.holders
    return True
