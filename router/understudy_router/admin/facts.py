"""What is known of one replica, and of one node, at one moment (data)."""

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
"""How a state is asked for that nobody knows."""

RUNNING = "RUNNING"


class Standing(IntEnum):
    """What a replica is good for. From BEHIND on it has an open version of the history and layout in use."""

    DEAD = 0
    UNHEARD = 1
    CLOSED = 2
    BEHIND = 3
    DOUBTFUL = 4
    """Caught up, and not to be counted on: its node drains, leaves, has failed, or does not answer as it should."""
    CAUGHT_UP = 5

    @property
    def is_live(self) -> bool:
        return self is not Standing.DEAD

    @property
    def is_open(self) -> bool:
        return self >= Standing.BEHIND


class Facts(NamedTuple):
    """One replica, but for its role. `state` is None while nothing was heard of its node."""

    state: str | None
    version: int | None = None
    offset_lag: int | None = None
    time_lag_ms: int | None = None
    report_age_ms: int | None = None
    error: str | None = None
    restore: Restore | None = None
    standing: Standing = Standing.DEAD


class NodeView(NamedTuple):
    """One node. `facts` hold for all its replicas but those in `own`, by task key."""

    node_id: str
    endpoint: HostInfo
    facts: Facts
    own: Mapping[str, Facts] = {}
    report: NodeReport | None = None
    """None of a node that does not live, or was never heard."""
    dead: DeadNode | None = None
    health: Change | None = None
    age_ms: int | None = None
    """Since its last heartbeat, or since its death."""
    is_silent: bool = False
    """Whether the bus has not carried its heartbeats for three of them."""

    @property
    def is_live(self) -> bool:
        return self.report is not None

    @property
    def heartbeat(self) -> Heartbeat | None:
        return None if self.report is None else self.report.heartbeat

    @property
    def state(self) -> str:
        """What it says of itself; `dead`, or `unheard` when only the assignment names it."""
        if self.report is not None:
            return self.report.heartbeat.standing
        return "unheard" if self.dead is None else "dead"
