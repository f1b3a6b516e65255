"""Converts heartbeats to the assignor's input: members, and the replicas of each task (pure).

A heartbeat names no tasks while its node holds exactly those of its assignment. So it is read with that assignment,
which may be an earlier one: the last few are remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from understudy_node.cluster.assignor import Member, Replica
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Assignment, Heartbeat

REMEMBERED = 8
"""Number of remembered assignments. A node that is further behind has missed seconds of them."""


class Holdings:
    """The last assignments, with which heartbeats are read."""

    def __init__(self, acceptable_recovery_lag: int) -> None:
        self._acceptable_recovery_lag = acceptable_recovery_lag
        self._given: deque[tuple[tuple[int, int], dict[str, list[str]]]] = deque(maxlen=REMEMBERED)

    def follow(self, assignment: Assignment) -> None:
        """Remember an assignment that nodes may follow."""
        given: dict[str, list[str]] = {}
        for task, assigned in assignment.tasks.items():
            for node_id in assigned.holders:
                given.setdefault(node_id, []).append(task)
        self._given.append((assignment.order, given))

    def of(self, nodes: Sequence[AgedHeartbeat], lineage: str, partitions: int) -> dict[str, list[Replica]]:
        """Return the replicas of each task in one layout; they are caught up if near the highest reported end."""
        following = [each.heartbeat for each in nodes if each.heartbeat.lineage == lineage]
        enough = max((each.end_version for each in following), default=0) - self._acceptable_recovery_lag
        held: dict[str, list[Replica]] = {}
        for heartbeat in following:
            if heartbeat.partitions == partitions:
                for task in self._tasks_of(heartbeat):
                    held.setdefault(task, []).append(_replica(heartbeat, task, enough))
        return held

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


def _replica(heartbeat: Heartbeat, task: str, enough: int) -> Replica:
    applied = heartbeat.exceptions.get(task, heartbeat.applied)
    version = applied.version
    caught_up = version is not None and version >= enough and applied.state in ("RUNNING", "RESTORING")
    return Replica(heartbeat.node_id, caught_up, version)
