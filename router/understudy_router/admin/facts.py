"""The facts about one replica, and about one node, at one moment (data)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from understudy_router.cluster.health import Change
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Heartbeat, Restore
from understudy_shared.cluster.view import DeadNode, NodeReport

DEAD = "DEAD"
"""The state of a replica whose node does not live."""

UNKNOWN = "UNKNOWN"
"""The filter value for replicas whose state is unknown."""

RUNNING = "RUNNING"


class Standing(IntEnum):
    """The usefulness of a replica to readers. From BEHIND on it has an open version of the history and layout in
    use.
    """

    DEAD = 0
    UNHEARD = 1
    CLOSED = 2
    BEHIND = 3
    DOUBTFUL = 4
    """Caught up, but not reliable: its node drains, leaves, has failed, or does not answer as it should."""
    CAUGHT_UP = 5

    @property
    def is_live(self) -> bool:
        return self is not Standing.DEAD

    @property
    def is_open(self) -> bool:
        return self >= Standing.BEHIND


class Facts(NamedTuple):
    """The facts about one replica, without its role. `state` is `None` until a heartbeat of its node is heard."""

    state: str | None
    version: int | None = None
    offset_lag: int | None = None
    time_lag_ms: int | None = None
    report_age_ms: int | None = None
    error: str | None = None
    restore: Restore | None = None
    standing: Standing = Standing.DEAD


class NodeView(NamedTuple):
    """The facts about one node. `facts` hold for all its replicas but those in `own`, by their numbers."""

    node_id: str
    endpoint: HostInfo
    facts: Facts
    own: Mapping[int, Facts] = {}
    report: NodeReport | None = None
    """The last report of the node; `None` when the node does not live, or was never heard."""
    dead: DeadNode | None = None
    health: Change | None = None
    age_ms: int | None = None
    """Milliseconds since its last heartbeat, or since its death."""
    is_silent: bool = False
    """Whether the bus has not carried the last three heartbeats of the node."""

    def of(self, replica: int) -> Facts:
        """Return the facts of one of its replicas."""
        return self.own.get(replica, self.facts)

    @property
    def is_live(self) -> bool:
        return self.report is not None

    @property
    def heartbeat(self) -> Heartbeat | None:
        return None if self.report is None else self.report.heartbeat

    @property
    def zone(self) -> str | None:
        """The zone of the node, after its death too."""
        known = self.report or self.dead
        return None if known is None else known.heartbeat.zone

    @property
    def reason(self) -> str:
        """The reason why the node is not well; empty while it is."""
        if self.health is not None:
            return self.health.why
        return "" if self.dead is None else self.dead.why

    @property
    def state(self) -> str:
        """The state that the node reports; `dead`, or `unheard` when only the assignment names it."""
        if self.report is not None:
            return self.report.heartbeat.standing
        return "unheard" if self.dead is None else "dead"
