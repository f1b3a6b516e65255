"""Asks a node which version was the newest at a moment: a router reads no checkpoint.

All nodes follow the same commit log, so the first one that answers will do. It is asked once for a read, and the read
goes on with the position: whatever its partitions, all of them are of one version.
"""

from __future__ import annotations

import asyncio

from understudy_router.cluster.tables import Tables
from understudy_router.questions.lease.snapshot_leases import SnapshotLeases
from understudy_shared.base.clock import wall_ms
from understudy_shared.cluster.node_calls import NodeCallError, NodeCalls
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.tokens import BadPositionError, Position, decode_position

MAX_ASKED = 3
"""Number of nodes that are asked until a moment is refused."""


class Moments:
    """The versions at moments, as the nodes of `tables` know them."""

    def __init__(self, tables: Tables, nodes: NodeCalls, leases: SnapshotLeases, *, deadline_ms: int) -> None:
        """Take the nodes, and the leases that reads renew. `deadline_ms` is the time for all nodes together that are
        asked.
        """
        self.leases = leases
        self._tables = tables
        self._nodes = nodes
        self._deadline_s = deadline_ms / 1000

    async def resolved(self, bound: Bound) -> Bound:
        """Return the bound with the version of the moment that it names. Renew its lease.

        Raises the problem of a moment before the first version that is retained, and of nodes that do not answer.
        """
        self.note_use(bound)
        moment_us = bound.moment_us(wall_ms() * 1000)
        if moment_us is None:
            return bound
        try:
            async with asyncio.timeout(self._deadline_s):
                return bound.resolved_at(await self._position_at(moment_us))
        except TimeoutError:
            what = f"no node said within {self._deadline_s:g} s which version was the newest then"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, "at", "Retry, or name the version")) from None

    def note_use(self, bound: Bound) -> None:
        """Renew the lease whose snapshot a read names."""
        if bound.lease is not None:
            self.leases.used(bound.lease)

    async def _position_at(self, at_us: int) -> Position:
        # A node that is further knows at least as many commits as the others.
        nodes = sorted(self._tables.nodes.values(), key=lambda node: -(node.heartbeat.applied.version or 0))
        said = "no node is known"
        for node in nodes[:MAX_ASKED]:
            try:
                status, reply = await self._nodes.position_at(node.heartbeat.endpoint.host_info(), at_us)
                if status == 200:
                    position = decode_position(str(reply.get("position")))
                    if self._is_current(position):
                        return position
                    said = f"{node.heartbeat.node_id} follows another history"
                    continue
            except (NodeCallError, BadPositionError) as error:
                said = error.what
                continue
            said = str(reply.get("detail", status))
            if reply.get("type") == ProblemType.VERSION_GONE.slug:
                extra = {name: value for name, value in reply.items() if name not in _MEMBERS}
                raise ProblemError(Problem(ProblemType.VERSION_GONE, said, "at", str(reply.get("fix", "")), extra))
        raise ProblemError(
            Problem(ProblemType.NO_ACCEPTABLE_REPLICA, f"no node says which version was the newest then: {said:.200}")
        )

    def _is_current(self, position: Position) -> bool:
        """Whether a position is of the history in use: a node may not have noticed a new one yet."""
        assignment = self._tables.assignment
        return assignment is None or position.lineage == assignment.lineage


_MEMBERS = frozenset(("type", "title", "status", "detail", "where", "fix"))
