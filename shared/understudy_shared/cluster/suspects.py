"""The state of silent nodes: which to ask for a heartbeat, and which did not answer (pure: no I/O, no clock).

Silence on the bus does not prove that a node died: only a node that does not answer when asked counts as dead. A
silent node is asked once per heartbeat. A node that does not answer is asked less and less often, but never given
up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

ASK_AFTER_HEARTBEATS = 1.5
"""The silence after which a node is asked: half of the expiry, so that its answer arrives before it counts as dead."""

MAX_PAUSE_HEARTBEATS = 30
"""Longest time between two requests to a node that does not answer."""


ANSWER_DEADLINE_MS = 1000
MIN_ANSWER_DEADLINE_MS = 200


def answer_deadline_ms(heartbeat_ms: int) -> int:
    """Return how long a node may take to send its heartbeat when asked: one heartbeat interval, within limits."""
    return max(MIN_ANSWER_DEADLINE_MS, min(ANSWER_DEADLINE_MS, heartbeat_ms))


LATE_MS = 250
"""The delay of a timeout that shows that the asking process was paused: the answer may have arrived unread."""


def counts_against(took_ms: float, *, deadline_ms: float, others_heard: bool) -> bool:
    """Whether a request without an answer, which ended after `took_ms`, is evidence that its node is dead.

    A failure before the deadline is evidence: the connection was refused, or broke. A timeout is evidence only if it
    came on time and other nodes were heard meanwhile: otherwise this process or its network may be at fault.
    """
    if took_ms < deadline_ms:
        return True
    return others_heard and took_ms <= deadline_ms + LATE_MS


class LastWord(NamedTuple):
    """The last heartbeat of a node: when it arrived, by the bus or as an answer, and the node's heartbeat interval."""

    at_ms: float
    heartbeat_ms: float

    def is_silent(self, now_ms: float) -> bool:
        """Whether the node is silent for so long that it should be asked."""
        return now_ms - self.at_ms > ASK_AFTER_HEARTBEATS * self.heartbeat_ms


@dataclass(slots=True)
class _Asked:
    """The state of the requests to one node."""

    asked_ms: float
    unanswered_since_ms: float | None = None
    """The time of its first unanswered request; None before that, and after each answer."""


class Silence:
    """The silent nodes, as one process that listens to the bus sees them."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Forget all nodes but the known ones, so that their number bounds the memory."""
        self._asked = {node_id: asked for node_id, asked in self._asked.items() if is_known(node_id)}

    def due(self, last: Mapping[str, LastWord], *, now_ms: float) -> list[str]:
        """Return the nodes to ask now; nodes that did not answer before come last."""
        due = [
            node_id
            for node_id, word in last.items()
            if word.is_silent(now_ms) and self._is_due(node_id, now_ms, word.heartbeat_ms)
        ]
        return sorted(due, key=lambda node_id: (self.is_unanswered(node_id), last[node_id], node_id))

    def asked(self, node_id: str, now_ms: float) -> None:
        """Note that a request was sent to this node."""
        known = self._asked.setdefault(node_id, _Asked(now_ms))
        known.asked_ms = now_ms

    def answered(self, node_id: str) -> None:
        """Note that a heartbeat of this node arrived, as an answer or on the bus."""
        self._asked.pop(node_id, None)

    def did_not_answer(self, node_id: str, now_ms: float) -> None:
        """Note that a request to this node got no answer."""
        known = self._asked.setdefault(node_id, _Asked(now_ms))
        if known.unanswered_since_ms is None:
            known.unanswered_since_ms = now_ms

    def is_unanswered(self, node_id: str) -> bool:
        """Whether the node has not answered a request since its last heartbeat."""
        known = self._asked.get(node_id)
        return known is not None and known.unanswered_since_ms is not None

    def _is_due(self, node_id: str, now_ms: float, heartbeat_ms: float) -> bool:
        known = self._asked.get(node_id)
        if known is None:
            return True
        since_ms = known.unanswered_since_ms
        pause_ms = heartbeat_ms
        if since_ms is not None:
            pause_ms = min(max(heartbeat_ms, known.asked_ms - since_ms), MAX_PAUSE_HEARTBEATS * heartbeat_ms)
        return now_ms - known.asked_ms >= pause_ms
