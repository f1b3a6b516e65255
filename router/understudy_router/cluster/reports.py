"""What the tables keep of nodes and of events, for choices and reports."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_shared.bus.messages import Heartbeat


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The last heartbeat of a node. `said_ms` is when it was sent, on this machine's monotonic clock."""

    heartbeat: Heartbeat
    said_ms: float

    def age_ms(self, now_ms: float) -> float:
        return max(0.0, now_ms - self.said_ms)


@dataclass(frozen=True, slots=True)
class DeadNode:
    """A node that died or left, for reports."""

    heartbeat: Heartbeat
    died_ms: float
    why: str
    said_farewell: bool = False


@dataclass(frozen=True, slots=True)
class TableEvent:
    """An event for reports, at this machine's monotonic time."""

    at_ms: float
    event: str
    detail: str
