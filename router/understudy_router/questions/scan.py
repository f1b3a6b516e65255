"""Scans and counts at a router: the parts come from the nodes, partition after partition."""

from __future__ import annotations

from time import monotonic

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.questions.lookup.service import RouterReads
from understudy_router.questions.moments import Moments
from understudy_router.questions.scan_forwarder import ScanForwarder
from understudy_shared.cluster.node_calls import CallKind
from understudy_shared.questions.scan.hop import ScanHop
from understudy_shared.questions.scan.long_reads import Asker, LongReads
from understudy_shared.questions.scan.page import PartPage, Place, ReadPart, Room
from understudy_shared.questions.scan.requests import ScannedStore, ScanTurn
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bounds import Bound, ReadVersion


class RouterScans(Scans):
    """The scans of the stores of the application, by asking its nodes."""

    def __init__(self, reads: RouterReads, forwarder: ScanForwarder, moments: Moments, long_reads: LongReads) -> None:
        super().__init__(reads, long_reads)
        self._reads = reads
        self._forwarder = forwarder
        self._moments = moments

    def store(self, name: str) -> ScannedStore:
        route = self._reads.route(name)
        every = range(route.partitions)
        kind = str(route.shown["kind"])
        return ScannedStore(route.name, kind, route.application_id, route.lineage, route.codec, route.partitions, every)

    async def resolved(self, bound: Bound) -> Bound:
        return await self._moments.resolved(bound)

    async def first_version(self, turn: ScanTurn) -> ReadVersion:
        bound = await self._moments.resolved(turn.bound)
        return await self._forwarder.version(self._reads.route(turn.store.name), turn.partitions, bound, _kind(turn))

    async def estimate(self, turn: ScanTurn) -> int:
        bound = await self._moments.resolved(turn.bound)
        return await self._forwarder.estimate(self._reads.route(turn.store.name), turn.partitions, bound)

    def part_reader(self, turn: ScanTurn, version: ReadVersion, asker: Asker) -> ReadPart:
        route = self._reads.route(turn.store.name)
        self._moments.note_use(turn.bound)

        async def read(place: Place, room: Room) -> PartPage:
            hop = scan_hop(route, turn, version, place, room)
            part = await self._forwarder.part(route, hop, room.until_s, _kind(turn))
            self.long_reads.count(part)
            return part

        return read


def _kind(turn: ScanTurn) -> CallKind:
    return CallKind.WATCH if turn.is_watch else CallKind.SCAN


def scan_hop(route: StoreRoute, turn: ScanTurn, version: ReadVersion, place: Place, room: Room) -> ScanHop:
    """Return the question that nodes are asked for a part."""
    return ScanHop(
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
