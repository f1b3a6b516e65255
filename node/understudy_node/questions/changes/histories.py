"""Histories of keys at a node: for readers, and for the routers that ask in their name."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic

import orjson
from fastapi import APIRouter, Request, Response

from understudy_node.questions.changes.key_history import HistoryPage, HistoryQuestion, read_history
from understudy_node.questions.lookup.hop_calls import read_hop, reader_asked
from understudy_node.questions.lookup.hop_lookups import MISPLACED
from understudy_node.questions.lookup.reads import Reads
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.errors import MissingVersionError, VanishedError
from understudy_shared.http.problems import Problem, ProblemError, refused
from understudy_shared.questions.changes.histories import Histories, HistoryStore
from understudy_shared.questions.changes.history import PATH, HistoryHop, HistoryRange, decode_history_hop
from understudy_shared.reads.bounds import NO_BOUND, Refusal, Selection

HISTORY_S = 2.0
"""Time after which a page of a history ends."""


class NodeHistories(Histories):
    """The histories of the keys of this node's replicas."""

    def __init__(self, reads: Reads) -> None:
        super().__init__(reads)
        self._reads = reads

    def store(self, name: str) -> HistoryStore:
        reader = self._reads.reader(name)
        return HistoryStore(reader.store.name, reader.store.codec, reader.partitions, reader.max_key_bytes)

    async def read(self, name: str, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        return await self._read(self._reads.reader(name), partition, row, asked)

    async def read_for_router(self, hop: HistoryHop) -> bytes:
        """Return a page of a history for a router. Raises its problem."""
        reader = reader_asked(self._reads, hop)
        if not reader.store.codec.may_hold(hop.partition, hop.row, reader.partitions):
            raise ProblemError(MISPLACED)
        return await self._read(reader, hop.partition, hop.row, hop.range)

    async def _read(self, reader: StoreReader, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        shown = reader.read_from(partition, NO_BOUND)
        if isinstance(shown, Problem):
            raise ProblemError(shown)
        replica, newest = reader.replicas[partition], shown.view.version
        for version in (asked.first, asked.last):
            if version is not None and version > newest:
                candidate = replica.origin.as_candidate(shown.lag, Refusal.VERSION_NOT_YET)
                raise ProblemError(refused(Refusal.VERSION_NOT_YET, candidates=[candidate]))
        question = HistoryQuestion(
            partition,
            row,
            asked.first,
            newest if asked.last is None else asked.last,
            Selection(include_expired=asked.include_expired),
            monotonic() + HISTORY_S,
        )
        return _printed(partition, await self._page(reader, replica, question))

    async def _page(self, reader: StoreReader, replica: TaskReplica, asked: HistoryQuestion) -> HistoryPage:
        try:
            return await asyncio.wrap_future(replica.in_thread(partial(read_history, reader, replica, asked)))
        except (MissingVersionError, VanishedError):  # Spark purged it, perhaps in this moment
            retained = await asyncio.to_thread(replica.retained)
            raise ProblemError(replica.origin.as_gone(retained)) from None


def _printed(partition: int, page: HistoryPage) -> bytes:
    entries = b",".join(b"{%b,%b}" % (entry.members.rstrip(b","), entry.stamp) for entry in page.entries)
    return b'"partition":%d,"from":%d,"to":%d,"versions":[%b],"next_from":%b}\n' % (
        partition,
        page.first,
        page.last,
        entries,
        orjson.dumps(page.next_from),
    )


def history_hop_routes(histories: NodeHistories) -> APIRouter:
    """Make the call by which routers ask for a history."""
    routes = APIRouter()

    @routes.post(PATH)
    async def history(request: Request) -> Response:
        """Return the history of a key, as the JSON behind the key."""
        hop = await read_hop(request, decode_history_hop)
        return Response(b"{" + await histories.read_for_router(hop), media_type="application/json")

    return routes
