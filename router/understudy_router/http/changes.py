"""The changes of stores at a router: nodes read them, partition by partition."""

from __future__ import annotations

from time import monotonic

from understudy_router.forwarding.scanning import EXPORT_PART_S, ScanForwarder
from understudy_router.http.reads import Reads
from understudy_router.http.scans import scan_hop
from understudy_shared.reads.bounds import ReadVersion
from understudy_shared.reads.changes import ChangesHop, ChangesPlace, VersionLines, ahead_bytes
from understudy_shared.reads.merged_changes import FetchChanges
from understudy_shared.reads.scan_page import Place, Room
from understudy_shared.server.changes import Changes, ChangesTurn
from understudy_shared.server.scans import Scans


class RouterChanges(Changes):
    """The changes of the stores of the application, by asking its nodes."""

    def __init__(self, reads: Reads, scans: Scans, forwarder: ScanForwarder) -> None:
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
            return await self._forwarder.changes(route, ChangesHop(hop, asked.last, place.looked_at, is_short))

        return read
