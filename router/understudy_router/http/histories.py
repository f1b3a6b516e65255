"""Histories of keys at a router: a node that holds the key's partition reads the versions."""

from __future__ import annotations

from understudy_router.forwarding.scanning import ScanForwarder
from understudy_router.http.reads import Reads
from understudy_shared.reads.history import HistoryHop, HistoryRange
from understudy_shared.server.histories import Histories, HistoryStore


class RouterHistories(Histories):
    """The histories of the keys of the application, by asking its nodes."""

    def __init__(self, reads: Reads, forwarder: ScanForwarder) -> None:
        super().__init__(reads)
        self._reads = reads
        self._forwarder = forwarder

    def store(self, name: str) -> HistoryStore:
        route = self._reads.route(name)
        return HistoryStore(route.name, route.codec, route.partitions, self._reads.max_key_bytes)

    async def read(self, name: str, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        route = self._reads.route(name)
        of = (route.application_id, route.lineage, route.name, route.layout, route.partitions)
        return await self._forwarder.history(route, HistoryHop(*of, partition, row, asked))
