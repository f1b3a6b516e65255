"""Reads of several stores at a router."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_router.cluster.moments import Moments
from understudy_router.forwarding.scanning import ScanForwarder
from understudy_router.http.reads import Reads
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.position import Position
from understudy_shared.server.lookups import LookupsFirst
from understudy_shared.server.several_reads import SeveralStores


class RouterStores(SeveralStores):
    """The stores of the application, read by asking its nodes."""

    def __init__(self, lookups: LookupsFirst, reads: Reads, forwarder: ScanForwarder, moments: Moments) -> None:
        super().__init__(lookups)
        self._reads = reads
        self._forwarder = forwarder
        self._moments = moments

    def bound(self, store: str, params: Mapping[str, object]) -> Bound:
        return self._reads.bound(self._reads.route(store), params)

    async def position(self, store: str, bound: Bound) -> Position:
        route = self._reads.route(store)
        bound = await self._moments.resolved(bound)
        version = await self._forwarder.version(route, range(route.partitions), bound)
        return Position(
            ApplicationId(route.application_id), Lineage(route.lineage), version.number, version.committed_at_us
        )
