"""The choice of the nodes whose heartbeats a process keeps (pure): a bounded number, assigned nodes first.

A node is known when the assignment names it; any other node is a stranger. A process with write access to the bus can
invent nodes, and each costs memory and time at every turn until it expires. So strangers never displace known nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from typing import NamedTuple, Protocol

from understudy_shared.bus.messages import Heartbeat

MAX_NODES = 4096
"""Four times the largest planned cluster. Known nodes are admitted beyond it."""

MIN_STRANGERS, STRANGERS_PER_KNOWN_NODE = 256, 4
"""Strangers that are admitted beside known nodes. A cluster may grow fivefold with each assignment, and invented
nodes cost little more than the real ones. While no node is known, only `MAX_NODES` limits them.
"""

MAX_STRANGERS_TASKS = 262_144
"""Tasks that the heartbeats of all strangers together may name: about 100 MB."""

QUIET_MS = 10_000
"""The silence after which a stranger makes room for another; a stranger that sends heartbeats keeps its place."""

LOOK_AGAIN_MS = 100
"""Least time between two searches for a silent stranger: thousands of strangers may come in a second."""


class Said(Protocol):
    """The last heartbeat of a node."""

    @property
    def said_ms(self) -> float: ...


class Admission(NamedTuple):
    """The decision whether a heartbeat is accepted, and the id of the node to forget to make room for it."""

    admitted: bool
    leaves: str | None = None


def limit_beside(known: int) -> int:
    """Return how many nodes are admitted in all beside so many known ones, dead or alive."""
    return known + max(MIN_STRANGERS, STRANGERS_PER_KNOWN_NODE * known) if known else MAX_NODES


class MemberAdmission:
    """The admission of nodes. `refused` counts the heartbeats for which there was no room."""

    def __init__(self, *, max_nodes: int = MAX_NODES) -> None:
        self.refused = 0
        self._max_nodes = max_nodes
        self._tasks: dict[str, int] = {}
        """The number of tasks that each stranger names."""
        self._sum = 0
        self._looked_ms = float("-inf")

    def admit(
        self, heartbeat: Heartbeat, nodes: Mapping[str, Said], known: Collection[str], now_ms: float
    ) -> Admission:
        """Decide on one heartbeat.

        `nodes` are the admitted ones, in the order of arrival; `known` are the assigned ones.
        """
        node_id = heartbeat.node_id
        if node_id in known:
            self.forget(node_id)
            if node_id in nodes or len(nodes) < self._max_nodes:
                return Admission(True)
            newest = next((each for each in reversed(list(nodes)) if each not in known), None)
            return Admission(True, newest)
        tasks = len(heartbeat.exceptions) + len(heartbeat.held or ())
        if self._sum - self._tasks.get(node_id, 0) + tasks > MAX_STRANGERS_TASKS:
            return self._refuse()
        leaves = None
        if node_id not in nodes and len(nodes) >= min(self._max_nodes, limit_beside(len(known))):
            leaves = self._quiet(nodes, known, now_ms)
            if leaves is None:
                return self._refuse()
        self.forget(node_id)
        if tasks:
            self._tasks[node_id] = tasks
            self._sum += tasks
        return Admission(True, leaves)

    def forget(self, node_id: str) -> None:
        """Free the room of a node that is gone."""
        self._sum -= self._tasks.pop(node_id, 0)

    def _refuse(self) -> Admission:
        self.refused += 1
        return Admission(False)

    def _quiet(self, nodes: Mapping[str, Said], known: Container[str], now_ms: float) -> str | None:
        """Return the stranger that was silent longest, if it was silent for QUIET_MS."""
        if now_ms - self._looked_ms < LOOK_AGAIN_MS:
            return None
        self._looked_ms = now_ms
        quiet = [(node.said_ms, node_id) for node_id, node in nodes.items() if node_id not in known]
        said_ms, node_id = min(quiet, default=(now_ms, ""))
        return node_id if now_ms - said_ms > QUIET_MS else None
