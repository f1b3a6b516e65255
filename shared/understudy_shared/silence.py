"""Whom to ask because the bus has told nothing of them for a while, and what came of it (pure: no I/O, no clock).

Silence on the bus is no proof of death: only a node that does not answer when asked counts as dead. A node is asked
once per heartbeat while it is silent. One that does not answer is asked more and more seldom, but never given up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

ASK_AFTER_HEARTBEATS = 1.5
"""Silence after which a node is asked: half of what it takes to be dead, so that an answer comes in time."""

MAX_PAUSE_HEARTBEATS = 30
"""Between two questions to a node that has not answered for long."""


class LastWord(NamedTuple):
    """When a node was last heard of, in whatever way, and its heartbeat."""

    at_ms: float
    heartbeat_ms: float


@dataclass(slots=True)
class _Asked:
    """What asking one node came to."""

    asked_ms: float
    unanswered_since_ms: float | None = None
    """When it first did not answer; None while it has answered, or while the first answer is still out."""


class Silence:
    """Of one process that listens to the bus."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def keep(self, node_ids: Collection[str]) -> None:
        """Forget everybody else: what is kept is bounded by who is known."""
        for node_id in self._asked.keys() - set(node_ids):
            del self._asked[node_id]

    def due(self, last: Mapping[str, LastWord], *, now_ms: float) -> list[str]:
        """Whom to ask now; those that did not answer before come last."""
        due = [
            node_id
            for node_id, word in last.items()
            if now_ms - word.at_ms > ASK_AFTER_HEARTBEATS * word.heartbeat_ms
            and self._is_due(node_id, now_ms, word.heartbeat_ms)
        ]
        return sorted(due, key=lambda node_id: (self.is_unanswered(node_id), last[node_id], node_id))

    def asked(self, node_id: str, now_ms: float) -> None:
        """A question is on its way."""
        known = self._asked.setdefault(node_id, _Asked(now_ms))
        known.asked_ms = now_ms

    def answered(self, node_id: str) -> None:
        """It lives, by its own word or the bus's."""
        self._asked.pop(node_id, None)

    def did_not_answer(self, node_id: str, now_ms: float) -> None:
        """It was asked in vain."""
        known = self._asked.setdefault(node_id, _Asked(now_ms))
        if known.unanswered_since_ms is None:
            known.unanswered_since_ms = now_ms

    def is_unanswered(self, node_id: str) -> bool:
        """Whether it was asked in vain since it was last heard."""
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
