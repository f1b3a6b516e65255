"""Whether a router knows enough to route reads: its stores, what it lacks, and what is wrong while reads work, by
cause, for `/readyz` and the metrics.

If a router hears no node of its application, the id or the Redis may be mistyped. It looks for other applications only
while it waits for its first catalogue or assignment and no node lives. No lookup depends on the findings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import StrEnum

from understudy_router.cluster.tables import Tables
from understudy_router.cluster.watching import ClusterWatcher
from understudy_shared.auth.authentication import CREDENTIALS, ISSUERS
from understudy_shared.base.clock import Clock
from understudy_shared.base.texts import named
from understudy_shared.base.throttles import Reminder
from understudy_shared.base.words import FORK_FOUND, GOSSIP_KEY_MISSING, UNSIGNED_ACCEPTED, WRITES_REFUSED
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Applications, Gossip, unheard_fix, unheard_text
from understudy_shared.server.connection_guard import MEMORY
from understudy_shared.tls.service_tls import TLS

log = logging.getLogger(__name__)


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
        found[Cause.WRITES_REFUSED] = f"Redis refuses what {named(refused)} write: nothing is reassigned by them"
    if tables.nodes and not tables.end_confirmed(now_ms):
        found[Cause.LAG_UNKNOWN] = f"lag is unknown: no node confirmed the end within {tables.end_expiry_ms:.0f} ms"
    if tables.forks:
        found[Cause.FORK_FOUND] = "; ".join(list(tables.forks.values())[:3])
    if no_catalogue_why is not None and no_catalogue_why != bus_lost_why:
        found[Cause.NO_CATALOGUE] = f"the catalogue in use cannot be had: {no_catalogue_why}"
    return found


def bus_document(why: str | None) -> dict[str, object]:
    """Return the state of the bus, and its fault if there is one."""
    return {"state": "connected" if why is None else "degraded", "why": why or ""}


TICK_S = 0.25
LOOK_EVERY_MS = 5000
"""Milliseconds between two listings of the keys, which may belong to other applications."""


class NeighbourApplications:
    """The other applications on the bus, looked up while no node of this application is heard."""

    def __init__(self, gossip: Gossip, tables: Tables, watcher: ClusterWatcher, *, where: str, clock: Clock) -> None:
        """Prepare to search the bus; `where` names it, without its password."""
        self._gossip = gossip
        self._tables = tables
        self._watcher = watcher
        self._where = where
        self._clock = clock
        self._found: Applications | None = None

    def reason(self) -> str | None:
        """Return that no node is heard, and which applications are; None while nodes are heard."""
        if self._found is None or not self._is_unheard():
            return None
        return unheard_text(self._gossip.application_id, self._found, where=self._where)

    def fix(self) -> str | None:
        """Return the reason, and what to do; `None` where there is no reason."""
        if self._found is None or not self._is_unheard():
            return None
        return unheard_fix(self._gossip.application_id, self._found, where=self._where)

    async def run(self) -> None:
        """Search every few seconds while no node is heard, and log it less and less often."""
        reminder = Reminder()
        looked_ms = float("-inf")
        while True:
            now_ms = self._clock.monotonic_ms()
            if not self._is_unheard():
                self._found, looked_ms = None, float("-inf")
                reminder.reset()
            elif now_ms - looked_ms >= LOOK_EVERY_MS:
                looked_ms = now_ms
                await self._look()
                if self._found is not None and reminder.is_due(now_ms):
                    log.warning("%s", self.fix(), extra={"action": "no-nodes"})
            await asyncio.sleep(TICK_S)

    def _is_unheard(self) -> bool:
        """Whether the router waits for the documents of a node while the bus is reachable without any node."""
        is_waiting = self._watcher.catalogue.stores is None or self._tables.assignment is None
        return is_waiting and self._watcher.bus_lost_why is None and not self._tables.nodes

    async def _look(self) -> None:
        try:
            self._found = await self._gossip.applications()
        except BusError as error:  # the watcher says that Redis is away
            log.debug("the applications cannot be listed: %s", error, extra={"action": "no-nodes"})
