"""Converts heartbeats to the assignor's input: members, and the replicas of each task (pure).

A heartbeat names no tasks while its node holds exactly those of its assignment. So it is read with that assignment,
which may be an earlier one: the last few are remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from understudy_node.cluster.assignor import Member, Replica
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Heartbeat

REMEMBERED = 8
"""Number of remembered assignments. A node that is further behind has missed seconds of them."""


Kind = tuple[bool, bool]
"""Whether a replica is caught up, and whether it can be read."""


class _Reported(NamedTuple):
    """The replicas of one node, as far as they decide something."""

    tasks: Sequence[str]
    usual: Kind
    unusual: Mapping[str, Kind]

    def kinds(self) -> dict[str, Kind]:
        return {task: self.unusual.get(task, self.usual) for task in self.tasks}


_NO_REPLICAS = _Reported((), (False, False), {})


class Holdings:
    """The reported replicas by task, and the last assignments, with which heartbeats are read.

    A heartbeat that reports the same kinds of replicas as the one before costs one comparison: versions grow with each
    commit, and are looked up when they are asked for.
    """

    def __init__(self, acceptable_recovery_lag: int) -> None:
        self._acceptable_recovery_lag = acceptable_recovery_lag
        self._given: deque[tuple[tuple[int, int], dict[str, list[str]]]] = deque(maxlen=REMEMBERED)
        self._followed: Mapping[str, AssignedTask] = {}
        self._heartbeats: dict[str, Heartbeat] = {}
        self._reported: dict[str, _Reported] = {}
        self._holders: dict[str, set[str]] = {}
        """The nodes that report a replica of each task."""
        self._enough = 0
        """The version from which a replica is caught up."""

    def follow(self, assignment: Assignment) -> None:
        """Remember an assignment that nodes may follow."""
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
        """Take the heartbeats of all live nodes, for one layout. Return the tasks of which other `members` than before
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
        return [_replica(self._heartbeats[node_id], task, self._enough) for node_id in holders] if holders else default

    def _reported_by(self, node_id: str) -> _Reported:
        heartbeat = self._heartbeats.get(node_id)
        if heartbeat is None:
            return _NO_REPLICAS
        usual = _kind(heartbeat.applied, self._enough)
        unusual = {task: _kind(applied, self._enough) for task, applied in heartbeat.exceptions.items()}
        return _Reported(self._tasks_of(heartbeat), usual, unusual)

    def _replace(self, node_id: str, before: _Reported, found: _Reported) -> set[str]:
        """Replace what a node reports; return the tasks whose replicas are others."""
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


def _replica(heartbeat: Heartbeat, task: str, enough: int) -> Replica:
    applied = heartbeat.exceptions.get(task, heartbeat.applied)
    return Replica(heartbeat.node_id, _kind(applied, enough)[0], applied.version)
