"""Scans and counts at a router: the parts of a page come from the nodes, partition after partition."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from understudy_router.cluster.moments import Moments
from understudy_router.forwarding.scanning import ScanForwarder
from understudy_router.http.reads import Reads
from understudy_shared.reads.bounds import Bound, ReadVersion
from understudy_shared.reads.scan_hop import ScanHop
from understudy_shared.reads.scan_page import PartPage, Place, ReadPart, Room
from understudy_shared.server.long_reads import LongReads
from understudy_shared.server.scan_turns import Asker, ScannedStore, ScanTurn
from understudy_shared.server.scans import Scans


class RouterScans(Scans):
    """The scans of the stores of the application, by asking its nodes."""

    def __init__(self, reads: Reads, forwarder: ScanForwarder, moments: Moments, long_reads: LongReads) -> None:
        super().__init__(reads.requests, long_reads)
        self._reads = reads
        self._forwarder = forwarder
        self._moments = moments

    def has_store(self, name: str) -> bool:
        return self._reads.has_store(name)

    def store(self, name: str) -> ScannedStore:
        route = self._reads.route(name)
        every = range(route.partitions)
        kind = str(route.shown["kind"])
        return ScannedStore(route.name, kind, route.application_id, route.lineage, route.codec, route.partitions, every)

    def bound(self, store: ScannedStore, params: Mapping[str, object]) -> Bound:
        return self._reads.bound(self._reads.route(store.name), params)

    async def first_version(self, turn: ScanTurn) -> ReadVersion:
        bound = await self._moments.resolved(turn.bound)
        return await self._forwarder.version(self._reads.route(turn.store.name), turn.partitions, bound)

    async def estimate(self, turn: ScanTurn) -> int:
        return await self._forwarder.estimate(self._reads.route(turn.store.name), turn.partitions, turn.bound)

    def part_reader(self, turn: ScanTurn, version: ReadVersion, asker: Asker) -> ReadPart:
        route = self._reads.route(turn.store.name)
        self._moments.note_use(turn.bound)

        async def read(place: Place, room: Room) -> PartPage:
            hop = ScanHop(
                route.application_id,
                route.lineage,
                route.name,
                route.layout,
                route.partitions,
                turn.asked.question,
                place.partition,
                version,
                place.after,
                room.rows,
                max(0, room.bytes),
                room.is_empty,
                room.is_confined,
                max(0, round((room.until_s - monotonic()) * 1000)),
                turn.asked.longs_as_text,
                turn.bound.selection.limit,
            )
            part = await self._forwarder.part(route, hop, room.until_s)
            self.long_reads.count(part)
            return part

        return read
