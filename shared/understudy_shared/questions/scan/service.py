"""Scans and counts of a store, the same at nodes and routers: parsed, granted, limited, and answered page by page.

Nodes and routers differ in how they read a partition, and how they choose the version of a first page: see `Scans`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Literal

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.principals import UNGUARDED, Authorization
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import StoreKind
from understudy_shared.http.edge import App, Scope, read_body
from understudy_shared.http.lookup_requests import key_and_params
from understudy_shared.http.problems import RETAINED, ProblemError, ProblemType
from understudy_shared.http.target import SCAN, STORES, parse_query, refuse_unroutable, split_path
from understudy_shared.questions.lookup.batches import ambiguous_key
from understudy_shared.questions.lookup.windows import window_key
from understudy_shared.questions.scan.long_reads import Asker, LongReads
from understudy_shared.questions.scan.page import (
    COUNT_MS,
    PAGE_MS,
    PartPage,
    Place,
    ReadPart,
    Room,
    ScanPage,
    read_ordered_page,
    read_page,
)
from understudy_shared.questions.scan.question import ScanCursor, ScanOperation, ScanRequest
from understudy_shared.questions.scan.requests import (
    ScannedStore,
    ScanTurn,
    parse_scan,
    parse_scan_body,
    parse_windows,
    scan_turn,
)
from understudy_shared.questions.service_reads import ServiceReads, counted
from understudy_shared.reads.bounds import Bound, ReadVersion, version_of
from understudy_shared.reads.tokens import Position
from understudy_shared.server.app import KEY_PATH, without_framework
from understudy_shared.server.compression import VARIES
from understudy_shared.server.direct import AnsweringTasks, Exchange, ReaderLeftError
from understudy_shared.settings import Compression
from understudy_shared.telemetry.metrics import NO_STORE

CONFINED_MS = 3_000
"""Time limit of a page for a client that must not learn where other keys are: such a page ends at its own keys only."""

ORDERED_MS = 3_000
"""Time limit of a page of ordered rows, which must read every key. It is a problem if it cannot."""


class Scans(ABC):
    """Answers to scans and counts. `long_reads` limits them."""

    def __init__(self, service: ServiceReads, long_reads: LongReads) -> None:
        self.long_reads = long_reads
        self.service = service

    @abstractmethod
    def store(self, name: str) -> ScannedStore:
        """Return the store of that name. Raises NoSuchStoreError."""

    @abstractmethod
    async def first_version(self, turn: ScanTurn) -> ReadVersion:
        """Return the version of a first page: the one that its bound names, else the newest one that all of its
        partitions can read. Raises a problem if the bound cannot be met.
        """

    @abstractmethod
    async def resolved(self, bound: Bound) -> Bound:
        """Replace the moment in a bound by its version. Raises a problem if there is no version of that moment."""

    async def position_at(self, at_us: int) -> Position | None:
        """Return the position of the newest version at a moment; None if the moment is before the first version, and
        that one is still retained. Raises a problem if the version was purged.
        """
        try:
            found = (await self.resolved(Bound(at_us=at_us))).snapshot
        except ProblemError as error:
            retained = error.problem.extra.get(RETAINED)
            is_gone = error.problem.type is ProblemType.VERSION_GONE
            if not (is_gone and isinstance(retained, (list, tuple)) and retained[0] == 1):
                raise
            return None
        assert found is not None, "a moment that was resolved is a version"
        return found

    @abstractmethod
    def part_reader(self, turn: ScanTurn, version: ReadVersion, asker: Asker) -> ReadPart:
        """Return the function that reads a part of a page. It raises a problem if the partition cannot be read."""

    @abstractmethod
    async def estimate(self, turn: ScanTurn) -> int:
        """Estimate the number of rows of a scan, without scanning. Raises a problem if the store has no estimate."""

    async def answer(
        self,
        operation: ScanOperation,
        name: str,
        given: Mapping[str, object],
        authorization: Authorization,
        asker: Asker,
    ) -> bytes:
        """Return the answer to a request. Raises its problem."""
        with self.counted(operation, name, asker):
            store = self.store(name)
            return await self._answer(store, parse_scan(operation, given), authorization, asker)

    async def answer_windows(
        self, name: str, form: list[str], query: bytes, authorization: Authorization, asker: Asker
    ) -> bytes:
        """Return the windows of a key, which is given as in a lookup. Raises the problem of the request."""
        with self.counted("windows", name, asker):
            store = self.store(name)
            codec = window_key(store.codec, store.kind).codec
            row, given = key_and_params(codec, form, query)
            key = tuple(codec.to_json(codec.encode(row)).values())
            return await self._answer(store, parse_windows(given, key), authorization, asker)

    def _answer(
        self, store: ScannedStore, asked: ScanRequest, authorization: Authorization, asker: Asker
    ) -> Awaitable[bytes]:
        turn = scan_turn(store, asked, self.service.bound_of(store.name, asked.bounds), authorization)
        return self._estimated(turn) if turn.asked.is_estimate else self._page(turn, asker)

    async def _estimated(self, turn: ScanTurn) -> bytes:
        await self.waited(turn)
        with self.long_reads.begun():
            count = await self.estimate(turn)
        found = {"store": turn.store.name, "lineage": turn.store.lineage, "count": count, "is_estimate": True}
        return orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)

    async def begins(self, turn: ScanTurn) -> tuple[ReadVersion, Place]:
        """Return the version to read and the place to begin at: those of the cursor, else those of a first page."""
        cursor = turn.asked.cursor
        if cursor is None:
            return await self.first_version(turn), Place(turn.partitions[0])
        return version_of(cursor.version, cursor.committed_at_us), Place(cursor.partition, cursor.after)

    async def waited(self, turn: ScanTurn) -> tuple[ReadVersion, Place] | None:
        """Return what `begins` does, after a wait as the bound says, before the read takes a place. None: it need not
        wait.
        """
        if not turn.bound.wait_ms:
            return None
        try:
            with self.long_reads.waiting(is_long=False):
                return await self.begins(replace(turn, bound=replace(turn.bound, wait_ms=0)))
        except ProblemError as error:
            refusal = error.problem.refusal
            if refusal is None or not refusal.may_pass:
                raise
        with self.long_reads.waiting(is_long=True):
            return await self.begins(turn)

    async def _page(self, turn: ScanTurn, asker: Asker) -> bytes:
        begin = await self.waited(turn) if turn.bound.wait_ms else None  # most pages save the call
        with self.long_reads.begun():
            version, start = begin or await self.begins(turn)
            is_count, is_ordered = turn.is_count, turn.is_ordered
            question, limit = turn.asked.question, turn.asked.limit
            is_confined, parts = turn.is_confined, turn.partitions
            time_ms = ORDERED_MS if is_ordered else CONFINED_MS if is_confined else COUNT_MS if is_count else PAGE_MS
            until_s = monotonic() + time_ms / 1000
            read = asker.while_there(self.part_reader(turn, version, asker))
            if question.windows is not None and turn.store.codec.is_scattered:
                read = _of_one_partition(turn.store, read)
            if is_ordered:
                page = await read_ordered_page(
                    start,
                    parts,
                    read,
                    limit=limit,
                    until_s=until_s,
                    is_reversed=question.reverse,
                    is_confined=is_confined,
                )
            else:
                rows = None if is_count else limit
                page = await read_page(start, parts, read, limit=rows, until_s=until_s, is_confined=is_confined)
            return _body(turn, page, version)

    def counted(self, operation: ScanOperation | Literal["changes"], name: str, asker: Asker) -> _CountedRead:
        """Count a request by its outcome, and its time."""
        return _CountedRead(self.service, operation, name, asker)


class _CountedRead(counted):
    """A request that counts as cancelled if its client has left, whatever it ends with."""

    __slots__ = ("_asker",)

    def __init__(self, service: ServiceReads, operation: str, name: str, asker: Asker) -> None:
        super().__init__(service.requests, operation, name if service.has_store(name) else NO_STORE)
        self._asker = asker

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, ReaderLeftError() if self._asker.is_gone else error, trace)


def _body(turn: ScanTurn, page: ScanPage, version: ReadVersion) -> bytes:
    store, cursor = turn.store, turn.asked.cursor
    is_count = turn.is_count
    counted_rows = page.found + (0 if cursor is None else cursor.counted) if is_count else 0
    tail: dict[str, object] = {"next_cursor": None}
    if page.next is not None:
        committed_at_us = page.committed_at_us if version.committed_at_us is None else version.committed_at_us
        of = (store.application_id, store.lineage, store.name, version.number, committed_at_us)
        tail["next_cursor"] = ScanCursor(*of, page.next.partition, page.next.after, turn.digest, counted_rows).encode()
    if turn.asked.explain:
        tail["explain"] = page.explained(is_confined=turn.is_confined)
    head = {"store": store.name, **page.stamp, "lineage": store.lineage}
    if is_count:
        return orjson.dumps({**head, "count": counted_rows, **tail}, option=orjson.OPT_APPEND_NEWLINE)
    windows = turn.asked.question.windows
    if windows is None:
        return page.body(head, tail)
    names = window_key(store.codec, store.kind).codec.names
    key = dict(zip(names, windows.key, strict=True))
    return page.body({"store": store.name, "key": key, **head}, tail, "windows")


def _of_one_partition(store: ScannedStore, read: ReadPart) -> ReadPart:
    """Return the same function for the windows of a key in a scattered store. It raises a problem if two partitions
    have the same window, or the same key of sessions.
    """
    is_key = store.kind == StoreKind.SESSION
    seen: dict[bytes, int] = {}

    async def read_on(place: Place, room: Room) -> PartPage:
        part = await read(place, room)
        for rank, _ in part.ranks:
            other = seen.setdefault(b"" if is_key else rank, place.partition)
            if other != place.partition:
                raise ProblemError(ambiguous_key(store.name, sorted((other, place.partition))))
        return part

    return read_on


def scan_routes(scans: Scans) -> APIRouter:
    """Make `/v1/stores/{store}/scan` and `/v1/stores/{store}/count`."""
    routes = APIRouter()

    @routes.api_route("/v1/stores/{store}/scan", methods=["GET", "POST"])
    async def scan(store: str, request: Request) -> Response:
        """Return a page of the rows of a store, for a question in the query, or in the body."""
        return await _answered(scans, "scan", store, request)

    @routes.get("/v1/stores/{store}/windows")
    async def windows_by_json(store: str, request: Request) -> Response:
        """Return the windows of a key, which is JSON in `?key=`."""
        return await _answered_windows(scans, store, ["lookup"], request)

    @routes.get("/v1/stores/{store}/windows/" + KEY_PATH)
    async def windows_by_path(store: str, key: str, request: Request) -> Response:
        """Return the windows of a key, of which each column is a segment of the path."""
        _, _, _, _, *segments = split_path(request.scope["raw_path"])
        return await _answered_windows(scans, store, ["keys", *segments], request)

    @routes.get("/v1/stores/{store}/count")
    async def count(store: str, request: Request) -> Response:
        """Return how many rows a scan would have."""
        return await _answered(scans, "count", store, request)

    return routes


def scans_in_front(scans: Scans) -> Callable[[Scope], App | None]:
    """Return the function that answers pages before FastAPI, whose routing costs more than a seek."""

    def answer(request: Request) -> Awaitable[Response]:
        _, _, store, _ = split_path(request.scope["raw_path"])
        return _answered(scans, "scan", store, request)

    page = without_framework(answer)

    def in_front(scope: Scope) -> App | None:
        return page if scope["method"] == "GET" and is_page(scope["raw_path"]) else None

    return in_front


def is_page(raw_path: bytes) -> bool:
    store = raw_path[len(STORES) : -len(SCAN)]
    return raw_path.startswith(STORES) and raw_path.endswith(SCAN) and store != b"" and b"/" not in store


async def given_members(request: Request) -> Mapping[str, object]:
    """Return the members of a question, from the query of a GET or the body of a POST. Raises its problem."""
    if request.method == "POST":
        return parse_scan_body(await read_body(request.receive))
    return parse_query(request.scope["query_string"])


async def _answered(scans: Scans, operation: ScanOperation, store: str, request: Request) -> Response:
    given = await given_members(request)
    return await _watched(
        request, lambda asker: scans.answer(operation, store, given, authorization_of(request.scope), asker)
    )


async def _answered_windows(scans: Scans, store: str, form: list[str], request: Request) -> Response:
    query, authorization = request.scope["query_string"], authorization_of(request.scope)
    return await _watched(request, lambda asker: scans.answer_windows(store, form, query, authorization, asker))


async def _watched(request: Request, answer: Callable[[Asker], Awaitable[bytes]]) -> Response:
    """Return the result of `answer`, which can check whether the client is still connected."""
    asker = Asker()
    watching = asyncio.get_running_loop().create_task(asker.watch(request.receive), name="watch a reader")
    try:
        body = await answer(asker)
    finally:
        watching.cancel()
    return Response(body, media_type="application/json")


class DirectPages:
    """Answers to pages without ASGI, as for lookups, because the framework costs more than a short page.

    Pages are answered here only if the service asks for no credential. Otherwise the ASGI way decides what the
    principal may scan, because a scan is another action than a lookup. The ASGI way also serves clients that accept
    gzip: nothing is compressed here.
    """

    def __init__(self, scans: Scans, compression: Compression) -> None:
        self._scans = scans
        self._headers = VARIES if compression is Compression.GZIP else ()
        self._tasks = AnsweringTasks()

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        """See `AnswersDirectly`. A request that does not parse is left to ASGI, which answers with its problem."""
        path, _, query = target.partition(b"?")
        if exchange.authorization is not UNGUARDED or not is_page(path):
            return False
        try:
            refuse_unroutable(path)
            _, _, name, _ = split_path(path)
            given = parse_query(query)
        except UnderstudyError:
            return False
        asker = Asker()
        exchange.when_left(asker.leave)
        answer = self._scans.answer("scan", name, given, exchange.authorization, asker)
        self._tasks.begin(answer, exchange, "a page", self._headers)
        return True
