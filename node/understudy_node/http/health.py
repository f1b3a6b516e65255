"""The health of one node, for `understudy serve` and for requests to a node itself. A router knows the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from understudy_node.node import Node
from understudy_shared.base.clock import SystemClock
from understudy_shared.http.health import HealthReport, Indicator, State
from understudy_shared.http.status import Status
from understudy_shared.spark.times import utc_text

INDICATORS: Final = ("reads", "degraded", "checkpoint", "query")
"""Names of the indicators, those nearest to this process first: some of a router's, with its runbooks."""


class NodeHealth:
    """The memory since when each indicator is in its state, from one request to the next."""

    def __init__(self, node: Node, status: Callable[[], Status]) -> None:
        self._node = node
        self._status = status
        self._last: HealthReport | None = None

    def look(self) -> HealthReport:
        """Judge again, by /readyz and by what is known of the query."""
        found = indicators(self._status(), self._node.query_status())
        self._last = HealthReport.after(self._last, found, SystemClock().wall_us())
        return self._last

    def document(self) -> dict[str, object]:
        """Return `GET /admin/v1/health`."""
        report, host = self.look(), self._node.host
        return {
            "schema": 1,
            "generated_at": utc_text(SystemClock().wall_us()),
            "application_id": self._node.settings.application,
            "node": f"{host.host}:{host.port}",
            "node_id": self._node.node_id,
            **report.document(),
        }


def indicators(status: Status, query: Mapping[str, Any]) -> tuple[Indicator, ...]:
    """Judge by the status of /readyz, and by `Node.query_status` (pure)."""
    return (_reads(status), _degraded(status), _checkpoint(query), _query(query))


def _reads(status: Status) -> Indicator:
    if not status.reasons:
        return Indicator("reads")
    return Indicator(
        "reads",
        State.HURT,
        f"Not ready: {status.reasons[0]}",
        "some keys are not answered here",
        "; ".join(status.reasons[1:]),
        "wait while it restores; if it does not end, look at its log",
    )


def _checkpoint(query: Mapping[str, Any]) -> Indicator:
    if query["state"] != "unknown":
        return Indicator("checkpoint")
    return Indicator(
        "checkpoint",
        State.ATTENTION,
        "The end of the query is not confirmed",
        "no lag is known: readers with a bound on it are refused",
        "the storage of the checkpoint does not answer, or was not asked yet",
        "check the checkpoint's storage",
    )


def _query(query: Mapping[str, Any]) -> Indicator:
    if query["state"] != "idle":
        return Indicator("query")
    return Indicator(
        "query",
        State.ATTENTION,
        "The query has not committed for longer than it usually takes",
        "answers stay what they are",
        "it was stopped, waits for its trigger, or has no input",
        "look at the query; lookups go on",
    )


def _degraded(status: Status) -> Indicator:
    if not status.causes:
        return Indicator("degraded")
    why = list(status.causes.values())
    return Indicator(
        "degraded",
        State.ATTENTION,
        why[0],
        "lookups go on",
        "; ".join(why[1:]),
        "see its runbook",
        tuple(status.causes),
    )
