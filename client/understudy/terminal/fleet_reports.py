"""The overview of a fleet's router as pages of text: a row for each application, the worst first, and the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.terminal.console import Lines, Page, Sheet
from understudy.terminal.values import duration_text, number_text
from understudy_shared.base.texts import printable

HEALTH_COLUMNS = ("application", "health", "nodes", "what is wrong")
LAG_COLUMNS = ("application", "health", "end", "lag", "time lag", "unknown", "nodes", "replicas", "restoring", "dead")

_BAD_FIRST = ("hurt", "unknown", "attention", "ok")


def fleet_health_page(overview: Mapping[str, Any]) -> Page:
    """Render the health of each application."""
    rows = [
        (
            printable(each["application"]),
            each["health"]["state"],
            _nodes(each["counts"]),
            "" if each["health"]["state"] == "ok" else printable(each["health"]["headline"]),
        )
        for each in overview["applications"]
    ]
    return (Lines([_sum_line(overview["applications"]), ""]), Sheet(HEALTH_COLUMNS, rows))


def fleet_lag_page(overview: Mapping[str, Any]) -> Page:
    """Render the worst lag of each application, and its replicas as numbers."""
    rows = [
        (
            printable(each["application"]),
            each["health"]["state"],
            number_text(each["end"]["version"]) + ("" if each["end"]["confirmed"] else " (not confirmed)"),
            number_text(each["lag"]["worst_batches"]),
            duration_text(each["lag"]["worst_ms"]),
            number_text(each["lag"]["unknown"]),
            _nodes(each["counts"]),
            *(number_text(each["counts"][kind]) for kind in ("replicas", "restoring", "dead")),
        )
        for each in overview["applications"]
    ]
    return (Lines([_sum_line(overview["applications"]), ""]), Sheet(LAG_COLUMNS, rows))


def _nodes(counts: Mapping[str, Any]) -> str:
    """Return how many nodes of an application live, of how many."""
    return f"{counts['nodes_live']} of {counts['nodes_known']}"


def _sum_line(applications: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of applications by their health, and the sum of their replicas."""
    states = Counter(str(each["health"]["state"]) for each in applications)
    found = ", ".join(f"{states[state]} {state}" for state in _BAD_FIRST if states[state]) or "none is known yet"
    replicas = sum(each["counts"]["replicas"] for each in applications)
    return f"{len(applications)} applications: {found}; {replicas} replicas"
