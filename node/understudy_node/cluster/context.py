"""The objects that all parts of one member share, and whether it can read and write the bus."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from understudy_node.cluster.heartbeat import MemberId
from understudy_node.cluster.neighbours import Neighbours
from understudy_node.degraded import BUS_AWAY
from understudy_node.node import Node
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import WRITES_REFUSED
from understudy_shared.bus.base import BusError, BusRefusedError
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Heartbeat
from understudy_shared.cluster.node_calls import NodeCalls

log = logging.getLogger(__name__)


class BusState:
    """The state of listening and of writing, which can fail independently; `causes` is empty while both work."""

    def __init__(self) -> None:
        self._subscribe_error: str | None = "not connected yet"
        self._publish_error: str | None = None
        self._is_refused = False

    @property
    def causes(self) -> dict[str, str]:
        """The reason why the bus does not work, at most one: a failed write explains more than a silence."""
        if self._publish_error is not None and self._is_refused:
            return {WRITES_REFUSED: f"Redis refuses writes: {self._publish_error}"}
        why = self._publish_error or self._subscribe_error
        return {} if why is None else {BUS_AWAY: f"Redis is away: {why}"}

    def subscribed(self, error: str | None) -> None:
        """Note that messages arrive (None), or why they do not."""
        was, self._subscribe_error = self.causes, error
        self._note(was)

    def published(self, error: BusError | None) -> None:
        """Note that writes succeed (None), or why they fail."""
        was, self._publish_error = self.causes, None if error is None else str(error)
        self._is_refused = isinstance(error, BusRefusedError)
        self._note(was)

    def _note(self, was: dict[str, str]) -> None:
        now = self.causes
        for cause in now.keys() - was.keys():
            log.warning("%s; lookups go on", now[cause], extra={"action": "bus-lost", "cause": cause})
        if was and not now:
            log.info("Redis is there", extra={"action": "bus-back"})


@dataclass(frozen=True, slots=True)
class MemberContext:
    """One process of a node in the cluster of its application."""

    node: Node
    gossip: Gossip
    calls: NodeCalls
    neighbours: Neighbours
    bus_state: BusState
    changed: asyncio.Event
    """Set when the next heartbeat should not wait."""
    member_id: MemberId
    heartbeat_ms: int
    clock: Clock

    @property
    def node_id(self) -> str:
        return self.member_id.node_id

    def heard(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat that arrived now."""
        self.neighbours.heard(heartbeat, age_ms=0, now_ms=self.clock.monotonic_ms())
