"""Histories of keys at a router: a node that holds the key's partition reads the versions."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_router.forwarding.scanning import ScanForwarder
from understudy_router.http.reads import Reads
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.history import HistoryHop, HistoryRange
from understudy_shared.server.histories import Histories, HistoryStore


class RouterHistories(Histories):
    """The histories of the keys of the application, by asking its nodes."""

    def __init__(self, reads: Reads, forwarder: ScanForwarder) -> None:
        super().__init__(reads.requests)
        self._reads = reads
        self._forwarder = forwarder

    def has_store(self, name: str) -> bool:
        return self._reads.has_store(name)

    def store(self, name: str) -> HistoryStore:
        route = self._reads.route(name)
        return HistoryStore(route.name, route.codec, route.partitions, self._reads.max_key_bytes)

    def bound(self, store: HistoryStore, params: Mapping[str, object]) -> Bound:
        return self._reads.bound(self._reads.route(store.name), params)

    async def read(self, name: str, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        route = self._reads.route(name)
        of = (route.application_id, route.lineage, route.name, route.layout, route.partitions)
        return await self._forwarder.history(route, HistoryHop(*of, partition, row, asked))
