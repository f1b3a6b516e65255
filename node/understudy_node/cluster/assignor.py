"""Who has which task next: KIP-441's idea (pure, deterministic).

A placement to work towards is searched for (balance.py); of it, only what costs no reader anything is done now. A role
moves at once, but only onto a replica that is caught up. A replica moves by a warm-up: it is restored at its new place
first, and the one that it replaces goes when it is caught up. Called again and again, this comes to rest.

A node that is away (it died or left a moment ago, and may come back with all that it has on its disk) is active
nowhere, but keeps its places as a standby: nobody restores what it has, unless it was the last that had it. A warm-up
keeps none: it counts for nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from understudy_node.cluster.balance import Standing, Target, targets
from understudy_shared.messages import AssignedTask
from understudy_shared.words import Role

NOBODY = AssignedTask(active=None)


@dataclass(frozen=True, slots=True)
class Member:
    """A node that may be given tasks. Zone "" is none; a draining one gives all that it has to the others."""

    node_id: str
    zone: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Replica:
    """What a node says it has of a task. `version` is None while nothing of it can be read."""

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
    """The next assignment of `tasks`; equal to `previous` when there is nothing to do.

    `members` live, `away` do not and keep their places; whoever else `previous` names is gone.

    `held` is what nodes tell, by task. `max_warmup_replicas` limits replicas beyond the wanted number, over all tasks:
    those that are restored to replace another. A warm-up that fills a gap is not counted, because nothing waits for it.
    """
    if not members:
        return dict.fromkeys(tasks, NOBODY)
    staying = [member for member in members if not member.draining] or members
    zones, zones_away = ({member.node_id: member.zone for member in some} for some in (staying, away))
    copies = min(1 + num_standby_replicas, len(zones) + len(zones_away))
    alive = {member.node_id for member in members}
    standings = {
        task: _standing(previous.get(task, NOBODY), held.get(task, ()), alive, zones_away.keys()) for task in tasks
    }
    wanted = targets(zones, standings, copies, away=zones_away)
    spare = max_warmup_replicas
    found: dict[str, AssignedTask] = {}
    for task in sorted(standings, key=lambda task: (not standings[task].warmups, task)):  # begun before new
        found[task], extra = _step(standings[task], wanted[task], spare)
        spare -= extra
    return {task: found[task] for task in tasks}


def duties_of(tasks: Mapping[str, AssignedTask], node_id: str) -> dict[str, Role]:
    """What an assignment gives a node; a warm-up is a standby that does not count yet."""
    return {
        task: Role.ACTIVE if assigned.active == node_id else Role.STANDBY
        for task, assigned in tasks.items()
        if node_id in assigned.holders
    }


def _standing(before: AssignedTask, told: Sequence[Replica], alive: set[str], away: Set[str]) -> Standing:
    """Who is left of those who had a task, and how far they are; and who of them may come back.

    A replica that was given to nobody counts only where the others have nothing as good: when all of them died, or none
    of them is caught up and it is.
    """
    versions = {each.node_id: each.version for each in told if each.node_id in alive and each.version is not None}
    caught_up = {each.node_id for each in told if each.caught_up and each.node_id in versions}
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
    return Standing(
        active=active,
        standbys=frozenset(standbys),
        warmups=frozenset(warmups - standbys),
        ready=frozenset(ready),
        versions=versions,
        away=frozenset(missing),
    )


def _step(now: Standing, target: Target, spare: int) -> tuple[AssignedTask, int]:
    """What can be done for one task now, and how many replicas beyond the wanted number are warming up for it."""
    if not now.everyone:  # nobody is better than another: all begin together
        return _assigned(target.active, target.nodes - {target.active}), 0
    counted = now.settled | now.ready
    if not counted:  # the warm-up that is nearest is all there is
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


def _active(now: Standing, target: Target, candidates: frozenset[str]) -> str:
    """The target's active as soon as it is caught up; else who is active, as long as nobody is better."""
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
