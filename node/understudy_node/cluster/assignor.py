"""Decides which node gets which task next, by the idea of KIP-441 (pure, deterministic).

`balance.py` finds the target placement; `assign` takes only steps towards it that do not disturb reads. A role moves
at once, but only to a replica that is caught up. A replica moves by a warm-up: the new replica is restored first,
and the one that it replaces is dropped when the new one is caught up. Repeated calls converge.

A node that is away (it died or left a moment ago, and may come back with all files on its disk) has no active role,
but keeps its places as a standby: no other node restores its replicas, except for a task that has no replica on a
live node. A warm-up keeps no place: it does not count yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from understudy_node.cluster.balance import Target, TaskReplicas, targets
from understudy_shared.base.words import Role
from understudy_shared.bus.messages import AssignedTask

NOBODY = AssignedTask(active=None)


@dataclass(frozen=True, slots=True)
class Member:
    """A node that may be given tasks. Zone "" means no zone; a draining node passes all its tasks to the others."""

    node_id: str
    zone: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Replica:
    """A node's report of its replica of a task. `version` is None while the replica has no readable version."""

    node_id: str
    caught_up: bool
    version: int | None


def assign(
    members: Sequence[Member],
    tasks: Sequence[str],
    previous: Mapping[str, AssignedTask],
    held: Mapping[str, Sequence[Replica]],
    *,
    num_standby_replicas: int,
    max_warmup_replicas: int,
    away: Sequence[Member] = (),
) -> dict[str, AssignedTask]:
    """Return the next assignment of `tasks`; it equals `previous` when no step is left.

    `members` live, `away` do not and keep their places; every other node in `previous` is gone.

    `held` are the reported replicas, by task. `max_warmup_replicas` limits, over all tasks, the replicas beyond the
    wanted number: those that are restored to replace another. A warm-up that fills a gap does not count.
    """
    if not members:
        return dict.fromkeys(tasks, NOBODY)
    staying = [member for member in members if not member.draining] or members
    zones, zones_away = ({member.node_id: member.zone for member in some} for some in (staying, away))
    copies = min(1 + num_standby_replicas, len(zones) + len(zones_away))
    alive = {member.node_id for member in members}
    replicas_by_task = {
        task: _standing(previous.get(task, NOBODY), held.get(task, ()), alive, zones_away.keys()) for task in tasks
    }
    wanted = targets(zones, replicas_by_task, copies, away=zones_away)
    spare = max_warmup_replicas
    found: dict[str, AssignedTask] = {}
    for task in sorted(
        replicas_by_task, key=lambda task: (not replicas_by_task[task].warmups, task)
    ):  # warm-ups in progress first
        found[task], extra = _step(replicas_by_task[task], wanted[task], spare)
        spare -= extra
    return {task: found[task] for task in tasks}


def duties_of(tasks: Mapping[str, AssignedTask], node_id: str) -> dict[str, Role]:
    """Return the tasks and roles that an assignment gives a node; a warm-up is held as a standby."""
    return {
        task: Role.ACTIVE if assigned.active == node_id else Role.STANDBY
        for task, assigned in tasks.items()
        if node_id in assigned.holders
    }


def _standing(before: AssignedTask, held: Sequence[Replica], alive: set[str], away: Set[str]) -> TaskReplicas:
    """Return the live replicas of a task, how far they are, and those whose nodes may come back.

    Unassigned replicas count only if no assigned one is usable: all assigned replicas died, or only unassigned ones
    are caught up.
    """
    versions = {each.node_id: each.version for each in held if each.node_id in alive and each.version is not None}
    caught_up = {each.node_id for each in held if each.caught_up and each.node_id in versions}
    active = before.active if before.active in alive else None
    standbys = (alive & set(before.standbys)) - {active}
    warmups = (alive & set(before.warmups)) - {active} - standbys
    holders = standbys | warmups | ({active} if active is not None else set())
    if not holders:
        standbys = caught_up or set(versions)
    elif not holders & caught_up:
        standbys |= caught_up
    ready = caught_up & (holders | standbys)
    missing = {*before.standbys, before.active or ""} & away
    return TaskReplicas(
        active=active,
        standbys=frozenset(standbys),
        warmups=frozenset(warmups - standbys),
        ready=frozenset(ready),
        versions=versions,
        away=frozenset(missing),
    )


def _step(now: TaskReplicas, target: Target, spare: int) -> tuple[AssignedTask, int]:
    """Return the next assignment of one task, and how many replicas beyond the wanted number warm up for it."""
    if not now.everyone:  # no live node has the task: all start from nothing
        return _assigned(target.active, target.nodes - {target.active}), 0
    counted = now.settled | now.ready
    if not counted:  # only warm-ups are left: the most advanced one counts
        counted = frozenset({min(now.warmups, key=lambda node: (-now.versions.get(node, -1), node))})
    copies = len(target.nodes)
    late = target.nodes - now.ready - now.away
    leaving = sorted(
        counted - target.nodes,
        key=lambda node: (node not in now.ready, node != now.active, -now.versions.get(node, -1), node),
    )
    firm = (target.nodes & (counted | now.away)).union(leaving[: len(late)])
    warming = sorted(target.nodes - firm, key=lambda node: (node not in now.warmups, node))
    warmups = warming[: max(0, copies - len(firm) + spare)]
    active = _active(now, target, firm - now.away)
    extra = min(len(warmups), max(0, len(firm) + len(warmups) - copies))
    return _assigned(active, firm - {active}, warmups), extra


def _active(now: TaskReplicas, target: Target, candidates: frozenset[str]) -> str:
    """Return the target's active once it is caught up; else the present active, unless only another is caught up."""
    ready = candidates & now.ready
    if now.active is not None:
        if target.active in ready:
            return target.active
        if now.active in ready or (not ready and now.active in candidates):
            return now.active
    return min(
        candidates,
        key=lambda node: (
            node not in ready,
            node not in now.standbys,
            -now.versions.get(node, -1),
            node != target.active,
            node,
        ),
    )


def _assigned(active: str, standbys: frozenset[str], warmups: Sequence[str] = ()) -> AssignedTask:
    return AssignedTask(active=active, standbys=sorted(standbys), warmups=sorted(warmups))
