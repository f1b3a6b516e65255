"""Follows an assignment, and gives the node its tasks of it.

A later assignment replaces an earlier one if its number is possible. An assignment that all other nodes are far
behind was forged: it is dropped. An assignment of another lineage gives this node no tasks; nor does any assignment
while this node follows a fork.
"""

from __future__ import annotations

import logging

from understudy_node.cluster.assignor import duties_of
from understudy_node.cluster.context import MemberContext
from understudy_node.cluster.history_check import HistoryCheck
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.bus.messages import Assignment
from understudy_shared.cluster.saved_documents import Memory

log = logging.getLogger(__name__)


class AssignmentFollower:
    """The assignment that this node follows, which is in `neighbours`. `memory` keeps it for the next start."""

    def __init__(self, context: MemberContext, memory: Memory, *, check: HistoryCheck) -> None:
        self._memory = memory
        self._node = context.node
        self._gossip = context.gossip
        self._neighbours = context.neighbours
        self._node_id = context.node_id
        self._heartbeat_ms = context.heartbeat_ms
        self._check = check
        self._changed = context.changed
        self._applied: tuple[object, ...] = ()
        self._ahead_since_ms: float | None = None
        """The time at which this node's assignment first looked too far ahead of all others."""

    def follow(self, assignment: Assignment) -> None:
        """Follow an assignment, unless this node follows a later one already."""
        if self._neighbours.follow(assignment):
            self._memory.note(assignment)
            self.apply()
            self._changed.set()

    def apply(self) -> None:
        """Give the node the tasks of its assignment; no tasks if the assignment is of another history."""
        assignment = self._neighbours.assignment
        if assignment is None or not self._check.is_admitted:
            return
        applies = (assignment.order, assignment.lineage == self._node.lineage and self._check.may_hold)
        if applies == self._applied:
            return
        self._applied = applies
        duties = duties_of(assignment.tasks, self._node_id) if applies[1] else {}
        log.info(
            "assignment %d.%d: %d tasks", assignment.term, assignment.epoch, len(duties), extra={"action": "assigned"}
        )
        self._node.assign(duties, partitions=assignment.partitions if applies[1] else None)

    def drop_forged(self, now_ms: float) -> bool:
        """Drop the assignment if all others were far behind it for one expiry. Return True if it was dropped."""
        if not self._neighbours.is_far_ahead():
            self._ahead_since_ms = None
        elif self._ahead_since_ms is None:
            self._ahead_since_ms = now_ms
        elif now_ms - self._ahead_since_ms > EXPIRY_HEARTBEATS * self._heartbeat_ms:
            why = "assignment {}.{} was forged: all others are far behind it".format(*self._neighbours.order)
            self._gossip.refuse("assignment", why)
            self._neighbours.assignment, self._ahead_since_ms = None, None
            return True
        return False
