"""Changes and histories at a router: the nodes read them."""

from __future__ import annotations

from time import monotonic

from understudy_router.questions.lookup.service import RouterReads
from understudy_router.questions.scan import scan_hop
from understudy_router.questions.scan_forwarder import EXPORT_PART_S, ScanForwarder
from understudy_shared.cluster.node_calls import CallKind
from understudy_shared.questions.changes.histories import Histories, HistoryHop, HistoryRange
from understudy_shared.questions.changes.service import (
    ChangesHop,
    ChangesPlace,
    ChangesService,
    ChangesTurn,
    FetchChanges,
    VersionLines,
    ahead_bytes,
)
from understudy_shared.questions.scan.page import Place, Room
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bounds import ReadVersion


class RouterChanges(ChangesService):
    """The changes of the stores of the application, by asking its nodes."""

    def __init__(self, reads: RouterReads, scans: Scans, forwarder: ScanForwarder) -> None:
        super().__init__(scans)
        self._reads = reads
        self._forwarder = forwarder

    def reader(self, asked: ChangesTurn) -> FetchChanges:
        turn = asked.turn
        route = self._reads.route(turn.store.name)

        async def read(partition: int, place: ChangesPlace, is_short: bool) -> tuple[VersionLines, ...]:
            room = Room(None, ahead_bytes(len(turn.partitions)), monotonic() + EXPORT_PART_S)
            first = ReadVersion(place.version, of_any_commit=True)
            hop = scan_hop(route, turn, first, Place(partition), room)
            kind = CallKind.WATCH if turn.is_watch else CallKind.EXPORT
            return await self._forwarder.changes(route, ChangesHop(hop, asked.last, place.looked_at, is_short), kind)

        return read


class RouterHistories(Histories):
    """The histories of the keys of the application, by asking its nodes."""

    def __init__(self, reads: RouterReads, scans: Scans, forwarder: ScanForwarder) -> None:
        super().__init__(scans)
        self._reads = reads
        self._forwarder = forwarder

    async def read(self, name: str, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        route = self._reads.route(name)
        of = (route.application_id, route.lineage, route.name, route.layout, route.partitions)
        return await self._forwarder.history(route, HistoryHop(*of, partition, row, asked))
