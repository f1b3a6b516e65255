"""Decides whether this node hears all heartbeats: only those that may assign need them.

In a large cluster every node that hears all heartbeats costs Redis a thousand messages a second. So beside the node
with the lease only a few do that, ready to take the lease: the first by a hash of the ids, which spreads them over
zones and machines. The others keep what they know of the nodes, and read the keys from time to time. By them they see
that they follow another checkpoint or history than the others, and that the nodes that listen are all gone.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection

from understudy_node.cluster.context import MemberContext
from understudy_shared.cluster.follower import ClusterFollower

MAX_LISTENERS = 16
"""The number of nodes that hear all heartbeats: a cluster of so many works as if all did."""

LOOK_HEARTBEATS = 120
"""Heartbeats between two readings of the nodes' keys by a node that does not listen: at a thousand nodes they cost
Redis a thirtieth of a core.
"""

LEASE_LOOK_HEARTBEATS = 10
"""Heartbeats between two looks whether anybody has the lease."""


def is_among_first(node_id: str, nodes: Collection[str], most: int) -> bool:
    """Whether fewer than `most` of the nodes come before this one, by the hash of the ids."""
    own = _rank(node_id)
    return sum(_rank(each) < own for each in nodes) < most


def _rank(node_id: str) -> tuple[int, str]:
    return zlib.crc32(node_id.encode()), node_id


class HeartbeatListening:
    """The part of one node in it. Only the node's beat calls it."""

    def __init__(
        self,
        context: MemberContext,
        cluster: ClusterFollower,
        *,
        needs_all: Callable[[], bool],
    ) -> None:
        """Set the parts. A node that `needs_all` hears all heartbeats, whatever its rank."""
        self._context = context
        self._neighbours = context.neighbours
        self._cluster = cluster
        self._needs_all = needs_all
        self._look_ms = self._look_for_lease_ms = float("-inf")
        """The times of the next looks, while this node does not listen."""
        self._was_free = False
        """Whether the lease had no owner at the last look."""

    async def turn(self, now_ms: float) -> None:
        """Begin or end to listen; without listening, look at the keys when that is due. Raises BusError."""
        if self._is_listener():
            self._cluster.hear_heartbeats(True)
            self._look_ms, self._look_for_lease_ms = self._later(now_ms), self._later(now_ms, LEASE_LOOK_HEARTBEATS)
            return
        self._cluster.hear_heartbeats(False)
        self._neighbours.reset_heartbeat_ages(now_ms)  # silence proves nothing here
        if now_ms >= self._look_for_lease_ms:
            self._look_for_lease_ms = self._later(now_ms, LEASE_LOOK_HEARTBEATS)
            is_free = await self._context.gossip.lease_holder() is None
            if is_free and self._was_free:
                self._look_ms = now_ms
            self._was_free = is_free
        if now_ms >= self._look_ms:
            self._look_ms = self._later(now_ms)
            await self._cluster.read_nodes()

    def _is_listener(self) -> bool:
        """Whether this node needs all heartbeats, is one of the first, or has no place in the assignment yet."""
        neighbours, own_id = self._neighbours, self._context.node_id
        assignment = neighbours.assignment
        if assignment is None or own_id not in assignment.members or self._needs_all():
            return True
        return is_among_first(own_id, assignment.members.keys() & neighbours.nodes.keys(), MAX_LISTENERS)

    def _later(self, now_ms: float, heartbeats: int = LOOK_HEARTBEATS) -> float:
        """Return the time after about so many heartbeats: all nodes stop to listen at the same assignment."""
        return now_ms + heartbeats * self._context.heartbeat_ms * random.uniform(0.5, 1.5)  # noqa: S311  # jitter
