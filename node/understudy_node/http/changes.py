"""The changes of stores at a node: for its own readers, and for the routers that ask in their name."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import APIRouter, Request, Response

from understudy_node.http.exports import PiecesResponse
from understudy_node.http.hop_calls import read_hop, reader_asked
from understudy_node.http.reads import Reads
from understudy_node.stores.lookup import StoreReader
from understudy_node.stores.scan_rows import row_maker
from understudy_node.stores.version_changes import ChangesQuestion, no_changelogs, read_part, require_changes
from understudy_shared.base.errors import MissingVersionError, VanishedError
from understudy_shared.http.problems import Problem, ProblemError, refused
from understudy_shared.reads.bounds import NO_BOUND, Refusal
from understudy_shared.reads.changes import (
    PATH,
    ChangesHop,
    ChangesPlace,
    VersionLines,
    ahead_bytes,
    decode_changes_hop,
    encode_changes,
)
from understudy_shared.reads.merged_changes import FetchChanges
from understudy_shared.reads.selection import Selection
from understudy_shared.server.changes import Changes, ChangesTurn
from understudy_shared.server.scan_turns import Asker
from understudy_shared.server.scans import Scans


class NodeChanges(Changes):
    """The changes of the stores of this node's replicas."""

    def __init__(self, reads: Reads, scans: Scans) -> None:
        super().__init__(scans)
        self._reads = reads

    def reader(self, asked: ChangesTurn) -> FetchChanges:
        reader, scan = self._reads.reader(asked.turn.store.name), asked.turn.asked
        require_changes(reader)
        maker = row_maker(reader, scan.question, longs_as_text=scan.longs_as_text)
        room_bytes = ahead_bytes(len(asked.turn.partitions))

        async def read(number: int, place: ChangesPlace, is_short: bool) -> tuple[VersionLines, ...]:
            return await self._part(reader, ChangesQuestion(maker, number, place, asked.last, room_bytes, is_short))

        return read

    async def part_for_router(self, hop: ChangesHop) -> tuple[VersionLines, ...]:
        """Return the part that a router asks for. Raises its problem."""
        scan = hop.scan
        reader = reader_asked(self._reads, scan)
        require_changes(reader)
        selection = Selection(scan.elements, include_expired=scan.question.include_expired)
        maker = row_maker(reader, scan.question, selection, longs_as_text=scan.longs_as_text)
        place = ChangesPlace(scan.version.number, hop.skip)
        asked = ChangesQuestion(maker, scan.partition, place, hop.last, scan.room_bytes, hop.is_short)
        return await self._part(reader, asked)

    async def _part(self, reader: StoreReader, asked: ChangesQuestion) -> tuple[VersionLines, ...]:
        shown = reader.read_from(asked.partition, NO_BOUND)
        if isinstance(shown, Problem):
            raise ProblemError(shown)
        replica = reader.replicas[asked.partition]
        if asked.last > shown.view.version:
            candidate = replica.origin.as_candidate(shown.lag, Refusal.VERSION_NOT_YET)
            raise ProblemError(refused(Refusal.VERSION_NOT_YET, candidates=[candidate]))
        async with self.scans.long_reads.part_turn():
            try:
                return await asyncio.wrap_future(replica.in_thread(partial(read_part, replica, asked)))
            except (MissingVersionError, VanishedError):  # Spark purged it, perhaps in this moment
                readable = await asyncio.to_thread(replica.changelogs, reader.store.store_name)
        if readable is None:
            raise no_changelogs(reader)
        raise ProblemError(replica.origin.as_gone(readable))


def changes_hop_routes(changes: NodeChanges) -> APIRouter:
    """Make the call by which routers ask for changes."""
    routes = APIRouter()

    @routes.post(PATH)
    async def part(request: Request) -> Response:
        """Return the changes of one partition behind a place."""
        hop = await read_hop(request, decode_changes_hop)
        asker = Asker()
        found = await asker.while_it_waits(request.receive, changes.part_for_router(hop))
        return PiecesResponse(() if found is None else encode_changes(found))

    return routes
