"""The end of the history as a router's nodes report it: the newest one, and when a node last confirmed it (pure).

A thousand nodes send a heartbeat a second, and every choice needs the end. So a heartbeat costs one comparison here;
the nodes are searched only when the one that had the newest end goes back or away, or when other nodes count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from understudy_router.cluster.highest import Highest
from understudy_shared.bus.messages import Heartbeat


class Report(Protocol):
    """The last heartbeat of a node, and when it was sent."""

    @property
    def heartbeat(self) -> Heartbeat: ...
    @property
    def said_ms(self) -> float: ...


class KnownEnd:
    """The newest end of the nodes that count. `counting` gives the reports that count now, and the lineage in use."""

    def __init__(self, counting: Callable[[], tuple[Iterable[Report], str | None]]) -> None:
        self._counting = counting
        self._ends, self._confirmations = Highest(), Highest()
        self._lineage: str | None = None
        self._is_current = False

    def forget(self) -> None:
        """Drop the cached end, because other nodes or other lineages may count now. It is computed again at the next
        read.
        """
        self._is_current = False

    def heard(self, report: Report) -> None:
        """Take in a new report of a node that counts."""
        if not self._is_current:
            return
        is_same = report.heartbeat.lineage == self._lineage
        self._ends.put(report.heartbeat.node_id, report.heartbeat.end_version if is_same else None)
        self._confirmations.put(report.heartbeat.node_id, _confirmed_ms(report) if is_same else None)

    def version(self) -> int:
        """Return the newest end that any of the nodes reported; 0 before any report."""
        self._count()
        return int(self._ends.value or 0)

    def confirmed_ms(self) -> float | None:
        """Return when a node last confirmed the end, on this machine's clock; `None` when no node confirms it."""
        self._count()
        return self._confirmations.value

    def _count(self) -> None:
        if self._is_current:
            return
        reports, self._lineage = self._counting()
        counted = {each.heartbeat.node_id: each for each in reports if each.heartbeat.lineage == self._lineage}
        self._ends.fill({node_id: each.heartbeat.end_version for node_id, each in counted.items()})
        confirmed = {node_id: _confirmed_ms(each) for node_id, each in counted.items()}
        self._confirmations.fill({node_id: at_ms for node_id, at_ms in confirmed.items() if at_ms is not None})
        self._is_current = True


def _confirmed_ms(report: Report) -> float | None:
    age_ms = report.heartbeat.end_age_ms
    return None if age_ms is None else report.said_ms - age_ms
