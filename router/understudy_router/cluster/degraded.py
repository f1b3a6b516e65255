"""The reasons why a router is degraded although lookups work, by cause (pure), for `/readyz` and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from understudy_router.cluster.tables import Tables
from understudy_shared.auth.authentication import CREDENTIALS, ISSUERS
from understudy_shared.base.words import FORK_FOUND, GOSSIP_KEY_MISSING, UNSIGNED_ACCEPTED, WRITES_REFUSED
from understudy_shared.server.connection_guard import MEMORY
from understudy_shared.tls.service_tls import TLS

FEW = 3
"""Most nodes that a message names."""


class Cause(StrEnum):
    """The causes, as labels of the metric."""

    BUS_AWAY = "bus-away"
    NODES_UNHEARD = "nodes-unheard"
    WRITES_REFUSED = WRITES_REFUSED
    LAG_UNKNOWN = "lag-unknown"
    NO_CATALOGUE = "no-catalogue"
    FORK_FOUND = FORK_FOUND
    UNSIGNED_ACCEPTED = UNSIGNED_ACCEPTED
    GOSSIP_KEY_MISSING = GOSSIP_KEY_MISSING
    MEMORY = MEMORY
    CREDENTIALS = CREDENTIALS
    ISSUERS = ISSUERS
    TLS = TLS


def causes_of(
    tables: Tables, *, bus_lost_why: str | None, unheard: str | None, no_catalogue_why: str | None, now_ms: float
) -> Mapping[str, str]:
    """Return the reason of each present cause. A cause that only follows from another one is left out."""
    found: dict[str, str] = {}
    if bus_lost_why is not None:
        found[Cause.BUS_AWAY] = bus_lost_why
    elif unheard is not None:
        found[Cause.NODES_UNHEARD] = unheard
    refused = [node_id for node_id, node in sorted(tables.nodes.items()) if WRITES_REFUSED in node.heartbeat.degraded]
    if refused:
        found[Cause.WRITES_REFUSED] = f"Redis refuses what {_named(refused)} write: nothing is reassigned by them"
    if tables.nodes and not tables.end_confirmed(now_ms):
        found[Cause.LAG_UNKNOWN] = f"lag is unknown: no node confirmed the end within {tables.end_expiry_ms:.0f} ms"
    if tables.forks:
        found[Cause.FORK_FOUND] = "; ".join(list(tables.forks.values())[:FEW])
    if no_catalogue_why is not None and no_catalogue_why != bus_lost_why:
        found[Cause.NO_CATALOGUE] = f"the catalogue in use cannot be had: {no_catalogue_why}"
    return found


def bus_document(why: str | None) -> dict[str, object]:
    """Return the state of the bus, and its fault if there is one."""
    return {"state": "connected" if why is None else "degraded", "why": why or ""}


def _named(node_ids: list[str]) -> str:
    return ", ".join(node_ids[:FEW]) + (f" and {len(node_ids) - FEW} more" if len(node_ids) > FEW else "")
