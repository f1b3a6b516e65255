"""Decides which node gets which task next, by the idea of KIP-441 (pure, deterministic).

`balance.py` finds the target placement; `assign` takes only steps towards it that do not disturb reads. A role moves
at once, but only to a replica that is caught up. A replica moves by a warm-up: the new replica is restored first,
and the one that it replaces is dropped when the new one is caught up. Repeated calls converge.

A node that is away (it just died or left, and may come back with all files on its disk) has no active role, but keeps
its places as a standby: no other node restores its replicas, except for a task without a replica on a live node. A
warm-up keeps no place: it does not count yet.

`Holdings` reads heartbeats for it. A heartbeat names no tasks while its node holds exactly its assigned ones. So it is
read with the node's assignment, which may be an earlier one: the last few are remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from understudy_node.cluster.balance import Balance, Target, TaskReplicas
from understudy_node.cluster.weights import UNWEIGHED, Weighed
from understudy_shared.base.words import Role
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Heartbeat

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


class Assignor:
    """The assignor of one cluster. It keeps its last search, so that a call costs what changed since then.

    A task is at rest when it has its target and no step is left. Only tasks that changed or are not at rest are judged
    again. The result is the same as a new assignor's.
    """

    def __init__(self, *, num_standby_replicas: int, max_warmup_replicas: int, application_id: str = "") -> None:
        """Set the limits. `max_warmup_replicas` limits, over all tasks, the replicas beyond the wanted number: those
        that are restored to replace another. A warm-up that fills a gap does not count. Each application prefers
        different ones among equal nodes (balance.py).
        """
        self._application_id = application_id
        self._num_standby_replicas = num_standby_replicas
        self._max_warmup_replicas = max_warmup_replicas
        self._last: _Search | None = None

    def assign(
        self,
        members: Sequence[Member],
        tasks: Sequence[str],
        previous: Mapping[str, AssignedTask],
        held: Mapping[str, Sequence[Replica]] | Holdings,
        *,
        away: Sequence[Member] = (),
        changed: Set[str] | None = None,
        weighed: Weighed = UNWEIGHED,
    ) -> dict[str, AssignedTask]:
        """Return the next assignment of `tasks`; it equals `previous` when no step is left.

        `members` live, `away` do not and keep their places; every other node in `previous` is gone. `held` are the
        reported replicas, by task. `changed` are the tasks where other members than at the last call report a replica,
        or other replicas are caught up or readable; None: any task may be one. `weighed` decides between equal numbers,
        and has the exchange in progress.
        """
        last, self._last = self._last, None  # an error leaves nothing half done
        if not members:
            return dict.fromkeys(tasks, NOBODY)
        staying = [member for member in members if not member.draining] or members
        zones, zones_away = ({member.node_id: member.zone for member in some} for some in (staying, away))
        copies = min(1 + self._num_standby_replicas, len(zones) + len(zones_away))
        if last is None or changed is None or (last.tasks, last.copies) != (tasks, copies):
            last, changed = _Search(tasks, copies, self._application_id), set(tasks)
        alive = {member.node_id for member in members}
        spare = self._max_warmup_replicas
        found = last.step(zones, zones_away, alive, weighed, previous=previous, held=held, changed=changed, spare=spare)
        self._last = last
        return found


class _Search:
    """The inputs and the results of the last call, by task."""

    def __init__(self, tasks: Sequence[str], copies: int, application_id: str) -> None:
        self.tasks = tasks
        self.copies = copies
        self._balance = Balance(tasks, copies, application_id)
        self._previous: dict[str, AssignedTask] = {}
        self._named: dict[str, set[str]] = {}
        self._alive: set[str] = set()
        self._places: tuple[Mapping[str, str], Mapping[str, str], Weighed] = ({}, {}, UNWEIGHED)
        """The zones of the nodes that may have replicas, and of the nodes away, and the weights."""
        self._found: dict[str, AssignedTask] = dict.fromkeys(tasks, NOBODY)
        self._restless: set[str] = set()

    def step(
        self,
        zones: Mapping[str, str],
        zones_away: Mapping[str, str],
        alive: set[str],
        weighed: Weighed,
        *,
        previous: Mapping[str, AssignedTask],
        held: Mapping[str, Sequence[Replica]] | Holdings,
        changed: Set[str],
        spare: int,
    ) -> dict[str, AssignedTask]:
        away = zones_away.keys()
        moved = (alive ^ self._alive) | (away ^ self._places[1].keys())
        again = self._restless | changed | self._take_previous(previous) | self._balance.leaving(zones)
        again.update(task for node in moved for task in self._named.get(node, ()))
        for exchange in (weighed.exchange, self._places[2].exchange):
            again.update(() if exchange is None else exchange.tasks)
        self._alive = alive

        def standing(task: str) -> TaskReplicas:
            return _standing(previous.get(task, NOBODY), held.get(task, ()), alive, away)

        replicas_by_task = {task: standing(task) for task in again}
        places = (zones, zones_away, weighed)
        is_same = not again and self._places == places
        wanted = {} if is_same else self._balance.search(zones, replicas_by_task, away=zones_away, weighed=weighed)
        self._places = places
        # Other tasks that the search moved: they have the replicas of the last call, at newer versions.
        replicas_by_task |= {task: standing(task) for task in wanted.keys() - again}
        self._restless = set()
        for task in sorted(
            wanted, key=lambda task: (not replicas_by_task[task].warmups, task)
        ):  # warm-ups in progress first
            replicas, target = replicas_by_task[task], wanted[task]
            self._found[task], extra = _step(replicas, target, spare)
            spare -= extra
            if not self._is_at_rest(task, replicas, target):
                self._restless.add(task)
        return dict(self._found)

    def _take_previous(self, previous: Mapping[str, AssignedTask]) -> set[str]:
        """Take the previous assignment; return the tasks that were assigned otherwise at the last call."""
        before, self._previous = self._previous, {task: previous.get(task, NOBODY) for task in self.tasks}
        found = set()
        for task, assigned in self._previous.items():
            known = before.get(task, NOBODY)
            if assigned is not known and assigned != known:
                found.add(task)
                for node in known.holders:
                    self._named[node].discard(task)
                for node in assigned.holders:
                    self._named.setdefault(node, set()).add(task)
        return found

    def _is_at_rest(self, task: str, replicas: TaskReplicas, target: Target) -> bool:
        """Whether a call with the same inputs changes nothing about a task, whatever happens to the others' versions.

        It has the wanted replicas and no others, and its next assignment is the present one.
        """
        return (
            self._found[task] == self._previous[task]
            and replicas.active == target.active
            and not replicas.warmups
            and len(target.nodes) >= self.copies
            and target.nodes == replicas.settled | replicas.away
        )


def duties_of(tasks: Mapping[str, AssignedTask], node_id: str) -> dict[str, Role]:
    """Return the tasks and roles that an assignment gives a node; a warm-up is held as a standby."""
    return {
        task: Role.ACTIVE if assigned.active == node_id else Role.STANDBY
        for task, assigned in tasks.items()
        if assigned.active == node_id or node_id in assigned.standbys or node_id in assigned.warmups
    }


def _standing(before: AssignedTask, held: Sequence[Replica], alive: set[str], away: Set[str]) -> TaskReplicas:
    """Return the live replicas of a task, how far they are, and the replicas on nodes that may come back.

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
    return AssignedTask(active=active, standbys=tuple(sorted(standbys)), warmups=tuple(sorted(warmups)))


REMEMBERED = 8
"""Number of remembered assignments. A node that follows an older one has missed seconds of them."""


Kind = tuple[bool, bool]
"""Whether a replica is caught up, and whether it can be read."""


class _Reported(NamedTuple):
    """The facts about one node's replicas that matter to decisions."""

    tasks: Sequence[str]
    usual: Kind
    unusual: Mapping[str, Kind]

    def kinds(self) -> dict[str, Kind]:
        return {task: self.unusual.get(task, self.usual) for task in self.tasks}


_NO_REPLICAS = _Reported((), (False, False), {})


class Holdings:
    """The reported replicas by task, and the last assignments, which are needed to read heartbeats.

    A heartbeat that reports the same kinds of replicas as the one before costs one comparison: versions, which grow
    with each commit, are looked up when needed.
    """

    def __init__(self, acceptable_recovery_lag: int) -> None:
        self._acceptable_recovery_lag = acceptable_recovery_lag
        self._given: deque[tuple[tuple[int, int], dict[str, list[str]]]] = deque(maxlen=REMEMBERED)
        self._followed: Mapping[str, AssignedTask] = {}
        self._heartbeats: dict[str, Heartbeat] = {}
        self._reported: dict[str, _Reported] = {}
        self._holders: dict[str, set[str]] = {}
        self._enough = 0

    def follow(self, assignment: Assignment) -> None:
        before, self._followed = self._followed, assignment.tasks
        given = dict(self._given[-1][1]) if self._given else {}
        gains: dict[str, list[str]] = {}
        losses: dict[str, set[str]] = {}
        for task in before.keys() - assignment.tasks.keys():
            for node_id in before[task].holders:
                losses.setdefault(node_id, set()).add(task)
        for task, assigned in assignment.tasks.items():
            known = before.get(task)
            if assigned is not known and assigned != known:
                for node_id in () if known is None else known.holders:
                    losses.setdefault(node_id, set()).add(task)
                for node_id in assigned.holders:
                    gains.setdefault(node_id, []).append(task)
        for node_id in gains.keys() | losses.keys():
            lost = losses.get(node_id, ())
            given[node_id] = [task for task in given.get(node_id, ()) if task not in lost] + gains.get(node_id, [])
        self._given.append((assignment.order, given))

    def look(self, nodes: Sequence[AgedHeartbeat], members: Set[str], lineage: str, partitions: int) -> set[str]:
        """Take the heartbeats of all live nodes, for one layout. Return the tasks where other `members` than before
        report a replica, or other replicas are caught up or readable.
        """
        following = [each.heartbeat for each in nodes if each.heartbeat.lineage == lineage]
        end_version = max((each.end_version for each in following), default=0)
        self._enough = end_version - self._acceptable_recovery_lag
        self._heartbeats = {
            each.node_id: each for each in following if each.partitions == partitions and each.node_id in members
        }
        changed: set[str] = set()
        for node_id in self._reported.keys() | self._heartbeats.keys():
            before = self._reported.get(node_id, _NO_REPLICAS)
            found = self._reported_by(node_id)
            if found != before:
                changed |= self._replace(node_id, before, found)
        return changed

    def get(self, task: str, default: Sequence[Replica]) -> Sequence[Replica]:
        """Return the replicas of a task; they are caught up if near the highest reported end."""
        holders = self._holders.get(task)
        if not holders:
            return default
        beats = [self._heartbeats[node_id] for node_id in holders]
        found = [(beat.node_id, beat.exceptions.get(task, beat.applied)) for beat in beats]
        return [Replica(node_id, _kind(applied, self._enough)[0], applied.version) for node_id, applied in found]

    def _reported_by(self, node_id: str) -> _Reported:
        heartbeat = self._heartbeats.get(node_id)
        if heartbeat is None:
            return _NO_REPLICAS
        usual = _kind(heartbeat.applied, self._enough)
        unusual = {task: _kind(applied, self._enough) for task, applied in heartbeat.exceptions.items()}
        return _Reported(self._tasks_of(heartbeat), usual, unusual)

    def _replace(self, node_id: str, before: _Reported, found: _Reported) -> set[str]:
        """Replace a node's report; return the tasks with other replicas."""
        old, new = before.kinds(), found.kinds()
        for task in old.keys() - new.keys():
            self._holders[task].discard(node_id)
        for task in new.keys() - old.keys():
            self._holders.setdefault(task, set()).add(node_id)
        if found is _NO_REPLICAS:
            del self._reported[node_id]
        else:
            self._reported[node_id] = found
        return {task for task in old.keys() | new.keys() if old.get(task) != new.get(task)}

    def _tasks_of(self, heartbeat: Heartbeat) -> Sequence[str]:
        if heartbeat.held is not None:
            return heartbeat.held
        order = (heartbeat.term, heartbeat.epoch)
        if order == (0, 0) or not self._given:
            return ()
        # For a forgotten assignment the present one is used: it has most of the same tasks.
        given = next((tasks for followed, tasks in self._given if followed == order), self._given[-1][1])
        return given.get(heartbeat.node_id, ())


def members_of(nodes: Sequence[AgedHeartbeat], lineage: str) -> list[Member]:
    """Return the nodes that may be given tasks of a lineage, of any number of partitions.

    Partitions do not matter: a replica is restored before it serves. A node that is stopping is not a member, unless it
    is draining: its last tasks still have to move.
    """
    beats = [each.heartbeat for each in nodes]
    has_zones = len({beat.zone for beat in beats}) > 1
    return [
        Member(beat.node_id, _zone_of(beat, has_zones=has_zones), beat.state == "draining")
        for beat in beats
        if beat.lineage == lineage and (beat.state == "draining" or (beat.state == "serving" and not beat.leaving))
    ]


def _zone_of(heartbeat: Heartbeat, *, has_zones: bool) -> str:
    """Return the zone of a node. If the nodes name no zones, or all the same one, machines are zones: several nodes
    may be on one machine, and a task with all its replicas there would be lost with it.
    """
    return (has_zones and heartbeat.zone) or heartbeat.endpoint.host


def _kind(applied: Applied, enough: int) -> Kind:
    version = applied.version
    is_caught_up = version is not None and version >= enough and applied.state in ("RUNNING", "RESTORING")
    return is_caught_up, version is not None
