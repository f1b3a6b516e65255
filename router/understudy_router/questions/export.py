"""Exports at a router: the parts come from the nodes, partition after partition."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from understudy_router.questions.lookup.service import RouterReads
from understudy_router.questions.scan import scan_hop
from understudy_router.questions.scan_forwarder import ScanForwarder
from understudy_shared.questions.export.hop import (
    PART_BYTES,
    PART_MS,
    PART_ROWS,
    EndHop,
    ExportHop,
    ExportPart,
    ResumePoint,
)
from understudy_shared.questions.export.service import Exports, FetchPart
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.page import Place, Room
from understudy_shared.questions.scan.requests import ScanTurn
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bounds import ReadVersion
from understudy_shared.reads.export_format import ExportFormat


class RouterExports(Exports):
    """The exports of the stores of the application, by asking its nodes."""

    def __init__(self, scans: Scans, reads: RouterReads, forwarder: ScanForwarder) -> None:
        super().__init__(scans)
        self._reads = reads
        self._forwarder = forwarder

    def part_reader(self, turn: ScanTurn, version: ReadVersion, form: ExportFormat, asker: Asker) -> FetchPart:
        route = self._reads.route(turn.store.name)

        async def read(place: Place, following: int | None) -> ExportPart:
            resume = None if turn.is_confined else ResumePoint(turn.digest, following)
            hop = ExportHop(scan_hop(route, turn, version, place, _part_room()), form, resume)
            part = await self._forwarder.export_part(route, hop)
            self.scans.long_reads.count(part.page)
            return part

        return read

    async def arrow_last(self, turn: ScanTurn, version: ReadVersion, said: Mapping[str, object]) -> bytes:
        route = self._reads.route(turn.store.name)
        hop = scan_hop(route, turn, version, Place(turn.partitions[0]), _part_room())
        return await self._forwarder.arrow_last(route, EndHop(hop, ExportFormat.ARROW, said))


def _part_room() -> Room:
    return Room(PART_ROWS, PART_BYTES, monotonic() + PART_MS / 1000)
