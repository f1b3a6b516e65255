"""Histories of keys, the same at nodes and routers: parsed, granted, counted, and answered page by page.

What differs is who reads the versions: see `Histories`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from time import monotonic
from typing import Final, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.principals import Authorization
from understudy_shared.auth.redaction import require_key
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.lookup_requests import encoded_key, key_and_params, longs_as_text, pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import split_path
from understudy_shared.questions.changes.history import HistoryRange, parse_range
from understudy_shared.questions.lookup.scattered import history_of
from understudy_shared.questions.service_reads import ServiceReads
from understudy_shared.server.request_counts import NO_STORE
from understudy_shared.spark.key_codec import KeyCodec

EVERYWHERE_S: Final = 40.0
"""Time for the history of a key that may be in any partition: each is asked for it."""


class HistoryStore(NamedTuple):
    """A store whose keys have histories."""

    name: str
    codec: KeyCodec
    partitions: int
    max_key_bytes: int


class Histories(ABC):
    """The answers to questions for histories."""

    def __init__(self, service: ServiceReads) -> None:
        self._service = service

    @abstractmethod
    def store(self, name: str) -> HistoryStore:
        """Return the store of that name. Raises UnknownStoreError."""

    @abstractmethod
    async def read(self, name: str, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        """Return a page of the history of a key, as the JSON behind the key. Raises the problem of one that cannot be
        read.
        """

    async def answer(self, name: str, form: list[str], query: bytes, authorization: Authorization) -> bytes:
        """Return the answer to a request. Raises its problem."""
        began_s, outcome = monotonic(), "internal"
        try:
            body = await self._body(name, form, query, authorization)
            outcome = "answered"
            return body
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except UnderstudyError as error:
            outcome = problem_of(error).outcome
            raise
        finally:
            counts = self._service.requests.of("history", name if self._service.has_store(name) else NO_STORE)
            counts.count(outcome)
            counts.duration_ms.observe((monotonic() - began_s) * 1000)

    async def _body(self, name: str, form: list[str], query: bytes, authorization: Authorization) -> bytes:
        store = self.store(name)
        row, params = key_and_params(store.codec, form, query)
        expired = {name: params.pop(name) for name in ("include_expired",) if name in params}
        selection = self._service.bound_of(store.name, expired).selection
        longs, asked = pop_longs(params), parse_range(params, include_expired=selection.include_expired)
        encoded = encoded_key(store.codec, row, store.max_key_bytes)
        key = store.codec.to_json(encoded)
        if authorization.keys.prefixes is not None:
            require_key(authorization, key)
        if store.codec.is_scattered:
            found = await self._everywhere(store, encoded, asked)
        else:
            found = await self.read(name, store.codec.partition(row, store.partitions), encoded, asked)
        body = b"%b,%b" % (orjson.dumps({"store": store.name, "key": key})[:-1], found)
        return longs_as_text(body) if longs else body

    async def _everywhere(self, store: HistoryStore, row: bytes, asked: HistoryRange) -> bytes:
        """Return a page of the history of a key that may be in any partition. Raises its problem."""
        pages = []
        try:
            async with asyncio.timeout(EVERYWHERE_S):
                for partition in range(store.partitions):
                    page = await self.read(store.name, partition, row, asked)
                    pages.append(orjson.loads(b"{" + page))
        except TimeoutError:
            what = f"{store.partitions} partitions were not read within {EVERYWHERE_S:g} s"
            fix = "Ask for fewer versions, with from and to"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, where="query", fix=fix)) from None
        return orjson.dumps(history_of(store.name, pages), option=orjson.OPT_APPEND_NEWLINE)[1:]


def history_routes(histories: Histories) -> APIRouter:
    """Make the calls that tell how a key came to be what it is."""
    routes = APIRouter()

    async def answered(store: str, form: list[str], request: Request) -> Response:
        query, authorization = request.scope["query_string"], authorization_of(request.scope)
        return Response(await histories.answer(store, form, query, authorization), media_type="application/json")

    @routes.get("/v1/stores/{store}/history")
    async def by_json(store: str, request: Request) -> Response:
        """Return the versions of a key, which is JSON in `?key=`."""
        return await answered(store, ["lookup"], request)

    @routes.get("/v1/stores/{store}/history/{key:path}")
    async def by_path(store: str, key: str, request: Request) -> Response:
        """Return the versions of a key, of which each column is a segment of the path."""
        _, _, _, _, *segments = split_path(request.scope["raw_path"])
        return await answered(store, ["keys", *segments], request)

    return routes
