"""Builds a node's heartbeat, by which others route and assign (pure but for reading the node).

Positions are read before the end: a commit between the two reads makes a replica look further behind than it is,
never nearer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from understudy_node.follow.end import End
from understudy_node.node import Node
from understudy_node.replica.task import TaskReplica
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.plausible import Order
from understudy_shared.base.words import ReplicaState
from understudy_shared.bus.messages import Applied, Endpoint, Heartbeat, Load, Restore

MAX_ERROR_CHARACTERS = 500
"""Most characters of a replica's error: enough to know where to look."""

State = Literal["starting", "serving", "draining", "failed"]


class MemberId(NamedTuple):
    """The identity of one process: the id of its node, and its incarnation, which each start makes anew."""

    node_id: str
    incarnation: str

    def __str__(self) -> str:
        return "/".join(self)


class MemberStatus(NamedTuple):
    """The state of the member for a heartbeat, beside its replicas.

    `order` is (term, epoch) of the followed assignment.
    """

    state: State
    order: Order
    leaving: bool = False
    degraded: Sequence[str] = ()
    forks: Mapping[str, str] = {}


class _ReplicaStatus(NamedTuple):
    """The position of a replica; equal for all replicas in step."""

    version: int | None
    time_lag_ms: int | None
    state: ReplicaState
    error: str | None
    restore: Restore | None

    def applied(self) -> Applied:
        return Applied(
            version=self.version,
            time_lag_ms=self.time_lag_ms,
            state=self.state.value,
            error=self.error,
            restore=self.restore,
        )


_NOTHING = _ReplicaStatus(None, None, ReplicaState.CREATED, None, None)

_Kind = tuple[int | None, ReplicaState, UnderstudyError | None, Restore | None]
"""Version, state, error and restore: the parts of a replica that are read. Replicas of one kind have one position."""


def heartbeat_of(
    node: Node,
    member_id: MemberId,
    status: MemberStatus,
    *,
    sequence: int,
    zone: str | None,
    heartbeat_ms: int,
    catalogue: str | None,
    now_ms: float,
    load: Load,
) -> Heartbeat:
    """Return the heartbeat of the node in its present state; `now_ms` is its monotonic clock."""
    generation = node.generation
    replicas = () if generation is None else generation.replicas
    kinds = {replica.key: _kind(replica) for replica in replicas}
    end = node.end
    one_of = dict(zip(kinds.values(), replicas, strict=True))  # one lag is computed for a thousand tasks in step
    standings = {kind: _standing(kind, replica, end, now_ms) for kind, replica in one_of.items()}
    counts: Counter[_ReplicaStatus] = Counter()
    for kind, count in Counter(kinds.values()).items():
        counts[standings[kind]] += count
    usual = counts.most_common(1)[0][0] if counts else _NOTHING
    unusual = {kind: standing.applied() for kind, standing in standings.items() if standing != usual}
    return Heartbeat(
        application_id=node.settings.application,
        node_id=member_id.node_id,
        incarnation=member_id.incarnation,
        sequence=sequence,
        endpoint=_endpoint(node),
        zone=zone,
        state=status.state,
        leaving=status.leaving,
        heartbeat_ms=heartbeat_ms,
        lineage=node.lineage,
        partitions=None if generation is None else generation.layout.partitions,
        end_version=end.version,
        end_age_ms=None if end.confirmed_ms is None else max(0, round(now_ms - end.confirmed_ms)),
        applied=usual.applied(),
        exceptions={task: unusual[kind] for task, kind in kinds.items() if kind in unusual} if unusual else {},
        held=_held(node, list(kinds)),
        term=status.order[0],
        epoch=status.order[1],
        catalogue=catalogue,
        checkpoint=masked_location(node.settings.checkpoint),
        degraded=list(status.degraded),
        freshness=node.measures.visible.freshness(now_ms),
        query=node.query_progress(),
        commits=node.history.newest(end.version),
        forks=dict(status.forks),
        waits_for=node.waits_for,
        load=load,
    )


def least_heartbeat(node: Node, member_id: MemberId, state: State, *, sequence: int, heartbeat_ms: int) -> Heartbeat:
    """Return a heartbeat without positions, for when the full heartbeat does not validate: the node lives."""
    return Heartbeat(
        application_id=node.settings.application,
        node_id=member_id.node_id,
        incarnation=member_id.incarnation,
        sequence=sequence,
        endpoint=_endpoint(node),
        state=state,
        heartbeat_ms=heartbeat_ms,
        lineage=node.lineage,
        end_version=0,
        end_age_ms=None,
        applied=_NOTHING.applied(),
        term=0,
        epoch=0,
    )


def _endpoint(node: Node) -> Endpoint:
    return Endpoint(host=node.host.host, port=node.host.port)


def _kind(replica: TaskReplica) -> _Kind:
    view = replica.view
    version = None if view is None else view.version
    return version, replica.state, replica.error, replica.restore


def _standing(kind: _Kind, replica: TaskReplica, end: End, now_ms: float) -> _ReplicaStatus:
    """Return the position of the replicas of a kind, by one of them: a node measures all of them against one end."""
    version, state, error, restore = kind
    time_lag_ms = None if version is None else replica.progress.lag_at(version, end, now_ms=now_ms).time_lag_ms
    said = None if error is None else str(error)[:MAX_ERROR_CHARACTERS]
    return _ReplicaStatus(version, time_lag_ms, state, said, restore)


def _held(node: Node, held: list[str]) -> list[str] | None:
    """Return every task held, if these are not the assigned ones."""
    duties = node.duties
    return None if duties is not None and duties.keys() == set(held) else sorted(held)
