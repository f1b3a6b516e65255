"""Scans and counts of a store, the same at nodes and routers: parsed, granted, limited, and answered page by page.

What differs is where the rows of a partition come from, and which version a first page is of: see `Scans`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.principals import Authorization
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import read_body
from understudy_shared.http.problems import problem_of
from understudy_shared.http.scan_requests import parse_scan, parse_scan_body
from understudy_shared.http.target import parse_query
from understudy_shared.reads.bounds import Bound, ReadVersion
from understudy_shared.reads.ordered_page import read_ordered_page
from understudy_shared.reads.scan_cursor import ScanCursor
from understudy_shared.reads.scan_page import COUNT_MS, PAGE_MS, Place, ReadPart, ScanPage, read_page, version_of
from understudy_shared.reads.scan_question import ScanOperation
from understudy_shared.server.long_reads import LongReads
from understudy_shared.server.request_counts import NO_STORE, RequestCounts
from understudy_shared.server.scan_turns import Asker, ScannedStore, ScanTurn, scan_turn

CONFINED_MS = 3_000
"""Time of a page for a reader who may not see where other keys are: it ends at its own keys only."""

ORDERED_MS = 3_000
"""Time of a page of ordered rows: it has looked at every key, or it is a problem."""


class Scans(ABC):
    """The answers to scans and counts. `requests` counts them; `long_reads` limits them."""

    def __init__(self, requests: RequestCounts, long_reads: LongReads) -> None:
        self.long_reads = long_reads
        self._requests = requests

    @abstractmethod
    def has_store(self, name: str) -> bool:
        """Whether a store has that name: only existing stores get a label."""

    @abstractmethod
    def store(self, name: str) -> ScannedStore:
        """Return the store of that name. Raises UnknownStoreError."""

    @abstractmethod
    def bound(self, store: ScannedStore, params: Mapping[str, object]) -> Bound:
        """Return the bound of a first page, and which elements of a key are wanted."""

    @abstractmethod
    async def first_version(self, turn: ScanTurn) -> ReadVersion:
        """Return the version of a first page: the one that its bound names, else the newest that all of its partitions
        can be read at. Raises the problem of a bound that cannot be kept.
        """

    @abstractmethod
    def part_reader(self, turn: ScanTurn, version: ReadVersion, asker: Asker) -> ReadPart:
        """Return the function that reads a part of a page. It raises the problem of a partition that cannot be read."""

    @abstractmethod
    async def estimate(self, turn: ScanTurn) -> int:
        """Return about how many rows a scan would have, at once. Raises the problem of a store without an estimate."""

    async def answer(
        self,
        operation: ScanOperation,
        name: str,
        given: Mapping[str, object],
        authorization: Authorization,
        asker: Asker,
    ) -> bytes:
        """Return the answer to a request. Raises its problem."""
        with self._counted(operation, name, asker):
            store, asked = self.store(name), parse_scan(operation, given)
            turn = scan_turn(store, asked, self.bound(store, asked.bounds), authorization)
            with self.long_reads.begun():
                if not turn.asked.is_estimate:
                    return await self._page(turn, asker)
                count = await self.estimate(turn)
                found = {"store": turn.store.name, "lineage": turn.store.lineage, "count": count, "is_estimate": True}
                return orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)

    async def _page(self, turn: ScanTurn, asker: Asker) -> bytes:
        cursor, time_ms = turn.asked.cursor, COUNT_MS if turn.is_count else PAGE_MS
        if cursor is None:
            version, start = await self.first_version(turn), Place(turn.partitions[0])
        else:
            version = version_of(cursor.version, cursor.committed_at_us)
            start = Place(cursor.partition, cursor.after)
        question, limit = turn.asked.question, turn.asked.limit
        time_ms = ORDERED_MS if question.order is not None else CONFINED_MS if turn.is_confined else time_ms
        until_s = monotonic() + time_ms / 1000
        read = asker.while_there(self.part_reader(turn, version, asker))
        parts, is_confined = turn.partitions, turn.is_confined
        if question.order is not None:
            page = await read_ordered_page(
                start, parts, read, limit=limit, until_s=until_s, is_reversed=question.reverse, is_confined=is_confined
            )
        else:
            rows = None if turn.is_count else limit
            page = await read_page(start, parts, read, limit=rows, until_s=until_s, is_confined=is_confined)
        return _body(turn, page, version)

    @contextmanager
    def _counted(self, operation: ScanOperation, name: str, asker: Asker) -> Iterator[None]:
        """Count a request by its outcome, and its time."""
        began_s, outcome = monotonic(), "internal"
        try:
            yield
            outcome = "cancelled" if asker.is_gone else "answered"
        except UnderstudyError as error:
            outcome = "cancelled" if asker.is_gone else problem_of(error).type.slug
            raise
        finally:
            counts = self._requests.of(operation, name if self.has_store(name) else NO_STORE)
            counts.count(outcome)
            counts.duration_ms.observe((monotonic() - began_s) * 1000)


def _body(turn: ScanTurn, page: ScanPage, version: ReadVersion) -> bytes:
    store, cursor = turn.store, turn.asked.cursor
    counted = page.found + (0 if cursor is None else cursor.counted) if turn.is_count else 0
    tail: dict[str, object] = {"next_cursor": None}
    if page.next is not None:
        committed_at_us = page.committed_at_us if version.committed_at_us is None else version.committed_at_us
        of = (store.application_id, store.lineage, store.name, version.number, committed_at_us)
        tail["next_cursor"] = ScanCursor(*of, page.next.partition, page.next.after, turn.digest, counted).encode()
    if turn.asked.explain:
        tail["explain"] = page.explained(is_confined=turn.is_confined)
    head = {"store": store.name, **page.stamp, "lineage": store.lineage}
    if turn.is_count:
        return orjson.dumps({**head, "count": counted, **tail}, option=orjson.OPT_APPEND_NEWLINE)
    return page.body(head, tail)


def scan_routes(scans: Scans) -> APIRouter:
    """Make `/v1/stores/{store}/scan` and `/v1/stores/{store}/count`."""
    routes = APIRouter()

    @routes.api_route("/v1/stores/{store}/scan", methods=["GET", "POST"])
    async def scan(store: str, request: Request) -> Response:
        """Return a page of the rows of a store, for a question in the query, or in the body."""
        return await _answered(scans, "scan", store, request)

    @routes.get("/v1/stores/{store}/count")
    async def count(store: str, request: Request) -> Response:
        """Return how many rows a scan would have."""
        return await _answered(scans, "count", store, request)

    return routes


async def _answered(scans: Scans, operation: ScanOperation, store: str, request: Request) -> Response:
    given: Mapping[str, object]
    if request.method == "POST":
        given = parse_scan_body(await read_body(request.receive))
    else:
        given = parse_query(request.scope["query_string"])
    asker = Asker()
    watching = asyncio.get_running_loop().create_task(asker.watch(request.receive), name="watch a reader")
    try:
        body = await scans.answer(operation, store, given, authorization_of(request.scope), asker)
    finally:
        watching.cancel()
    return Response(body, media_type="application/json")
