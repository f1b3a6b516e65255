"""A table of the health of nodes, and short words for it."""

from __future__ import annotations

from understudy_router.cluster.health import Health, HealthTable

SUSPECT_AFTER_MS = 200
HEARTBEAT_MS = 1000
HOUR_MS = 3_600_000
OK, SUSPECT, QUARANTINED = Health.OK, Health.SUSPECT, Health.QUARANTINED


def table() -> HealthTable:
    return HealthTable(suspect_after_ms=SUSPECT_AFTER_MS)


def health(table: HealthTable, node_id: str = "a") -> Health:
    return table.of(node_id).health
