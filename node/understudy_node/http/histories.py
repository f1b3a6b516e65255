"""Histories of keys at a node: for readers, and for the routers that ask in their name."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic

import orjson
from fastapi import APIRouter, Request, Response

from understudy_node.http.reads import Reads
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.key_history import HistoryPage, HistoryQuestion, read_history
from understudy_node.stores.lookup import ResolvedKey, StoreReader
from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.shown import require_printed_key
from understudy_shared.base.errors import MissingVersionError
from understudy_shared.http.lookup_requests import key_and_params, longs_as_text, pop_longs
from understudy_shared.http.problems import Problem, ProblemError, refused
from understudy_shared.http.target import split_path
from understudy_shared.reads.bounds import NO_BOUND, Refusal
from understudy_shared.reads.history import HistoryRange, parse_range
from understudy_shared.reads.selection import Selection

HISTORY_S = 2.0
"""Time after which a page of a history ends."""


class NodeHistories:
    """The histories of the keys of this node's replicas."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def read(self, reader: StoreReader, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        """Return a page of a history, as the JSON behind the key. Raises the problem of one that cannot be read."""
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

    async def answer(self, store: str, form: list[str], request: Request) -> Response:
        """Answer a reader."""
        reader = self._reads.reader(store)
        row, params = key_and_params(reader.store.codec, form, request.scope["query_string"])
        longs, asked = pop_longs(params), parse_range(params)
        key: ResolvedKey = reader.resolve(row)
        keys = authorization_of(request.scope).keys
        if keys.prefixes is not None:
            require_printed_key(keys, key.json)
        found = await self.read(reader, key.partition, key.stored[len(reader.row_prefix) :], asked)
        body = b'{"store":%b,"key":%b,%b' % (reader.json_name, key.json, found)
        return Response(longs_as_text(body) if longs else body, media_type="application/json")

    async def _page(self, reader: StoreReader, replica: TaskReplica, asked: HistoryQuestion) -> HistoryPage:
        try:
            return await asyncio.wrap_future(replica.in_thread(partial(read_history, reader, replica, asked)))
        except MissingVersionError:
            retained = await asyncio.to_thread(replica.retained)
            candidate = replica.origin.as_candidate(None, Refusal.VERSION_GONE)
            gone = refused(Refusal.VERSION_GONE, candidates=[candidate], retained=retained)
            raise ProblemError(gone) from None


def _printed(partition: int, page: HistoryPage) -> bytes:
    entries = b",".join(b"{%b,%b}" % (entry.members.rstrip(b","), entry.stamp) for entry in page.entries)
    return b'"partition":%d,"from":%d,"to":%d,"versions":[%b],"next_from":%b}\n' % (
        partition,
        page.first,
        page.last,
        entries,
        orjson.dumps(page.next_from),
    )


def history_routes(histories: NodeHistories) -> APIRouter:
    """Make the calls that tell how a key came to be what it is."""
    routes = APIRouter()

    @routes.get("/v1/stores/{store}/history")
    async def by_json(store: str, request: Request) -> Response:
        """Return the versions of a key, which is JSON in `?key=`."""
        return await histories.answer(store, ["lookup"], request)

    @routes.get("/v1/stores/{store}/history/{key:path}")
    async def by_path(store: str, key: str, request: Request) -> Response:
        """Return the versions of a key, of which each column is a segment of the path."""
        _, _, _, _, *segments = split_path(request.scope["raw_path"])
        return await histories.answer(store, ["keys", *segments], request)

    return routes
