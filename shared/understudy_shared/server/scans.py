"""Scans and counts of a store, the same at nodes and routers: parsed, granted, limited, and answered page by page.

What differs is where the rows of a partition come from, and which version a first page is of: see `Scans`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.principals import Authorization
from understudy_shared.auth.shown import require_key
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import Receive, read_body
from understudy_shared.http.problems import problem_of
from understudy_shared.http.scan_requests import parse_scan, parse_scan_body
from understudy_shared.http.target import parse_query
from understudy_shared.reads.bounds import BadBoundError, Bound, ReadVersion
from understudy_shared.reads.cursor import BadCursorError
from understudy_shared.reads.scan_cursor import ScanCursor
from understudy_shared.reads.scan_page import COUNT_MS, PAGE_MS, Place, ReadPart, ScanPage, read_page, version_of
from understudy_shared.reads.scan_prefix import KeyPrefix, parse_prefix
from understudy_shared.reads.scan_question import ScanOperation, ScanQuestion, ScanRequest
from understudy_shared.server.long_reads import LongReads
from understudy_shared.server.request_counts import NO_STORE, RequestCounts
from understudy_shared.spark.key_codec import KeyCodec

CONFINED_MS = 3_000
"""Time of a page for a reader who may not see where other keys are: it ends at its own keys only."""


@dataclass(frozen=True, slots=True)
class ScannedStore:
    """A store that is scanned. `held` are the partitions that are read here, of `partitions`."""

    name: str
    application_id: str
    lineage: str
    codec: KeyCodec
    partitions: int
    held: Sequence[int]


class Asker:
    """The client of a request; `is_gone` becomes true when it disconnects."""

    def __init__(self) -> None:
        self.is_gone = False

    async def watch(self, receive: Receive) -> None:
        """Wait until the client disconnects. The body of its request was read before."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True


@dataclass(frozen=True, slots=True)
class ScanTurn:
    """A request for a page that was parsed and granted. `partitions` are those of the scan, `digest` that of its
    question. `is_confined`: the reader may not see where other keys are.
    """

    store: ScannedStore
    asked: ScanRequest
    bound: Bound
    partitions: Sequence[int]
    digest: str
    is_confined: bool

    @property
    def is_count(self) -> bool:
        return self.asked.question.operation == "count"


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
            turn = self._turn(operation, name, given, authorization)
            with self.long_reads.begun():
                if not turn.asked.is_estimate:
                    return await self._page(turn, asker)
                count = await self.estimate(turn)
                found = {"store": turn.store.name, "lineage": turn.store.lineage, "count": count, "is_estimate": True}
                return orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)

    def _turn(
        self, operation: ScanOperation, name: str, given: Mapping[str, object], authorization: Authorization
    ) -> ScanTurn:
        """Parse a request, and judge whether it is granted and its cursor fits, before anything is read."""
        store = self.store(name)
        asked = parse_scan(operation, given)
        bound = self.bound(store, asked.bounds)
        question = replace(asked.question, include_expired=bound.selection.include_expired)
        asked = replace(asked, question=question)
        leading = question.prefix
        prefix = parse_prefix(store.codec, leading, store.partitions) if leading else None
        is_confined = authorization.keys.prefixes is not None
        if is_confined:
            require_key(authorization, {} if prefix is None else prefix.printed)
        partitions = _partitions(store, question, prefix)
        digest = question.digest(_asker_of(authorization, store))
        cursor = asked.cursor
        if cursor is not None:
            cursor.require_of(store.application_id, store.lineage, store.name, digest)
            if cursor.partition not in partitions:
                what = f"the cursor is of partition {cursor.partition}, which is not among those of the scan"
                raise BadCursorError(what, where="cursor", fix="Begin again without one")
            named = bound.read_version
            if named is not None and named.number != cursor.version:
                what = f"the cursor is of version {cursor.version}, and version {named.number} is asked for"
                raise BadCursorError(what, where="cursor", fix="Go on with the version of the first page")
        return ScanTurn(store, asked, bound, partitions, digest, is_confined)

    async def _page(self, turn: ScanTurn, asker: Asker) -> bytes:
        cursor, time_ms = turn.asked.cursor, COUNT_MS if turn.is_count else PAGE_MS
        if cursor is None:
            version, start = await self.first_version(turn), Place(turn.partitions[0])
        else:
            version = version_of(cursor.version, cursor.committed_at_us)
            start = Place(cursor.partition, cursor.after)
        until_s = monotonic() + (CONFINED_MS if turn.is_confined else time_ms) / 1000
        page = await read_page(
            start,
            turn.partitions,
            self.part_reader(turn, version, asker),
            limit=None if turn.is_count else turn.asked.limit,
            until_s=until_s,
            is_confined=turn.is_confined,
        )
        return _body(turn, page, version)

    @contextmanager
    def _counted(self, operation: ScanOperation, name: str, asker: Asker) -> Iterator[None]:
        """Count a request by its outcome, and its time."""
        began_s, outcome = monotonic(), "internal"
        try:
            yield
            outcome = "cancelled" if asker.is_gone else "answered"
        except UnderstudyError as error:
            outcome = problem_of(error).type.slug
            raise
        finally:
            counts = self._requests.of(operation, name if self.has_store(name) else NO_STORE)
            counts.count(outcome)
            counts.duration_ms.observe((monotonic() - began_s) * 1000)


def _partitions(store: ScannedStore, question: ScanQuestion, prefix: KeyPrefix | None) -> Sequence[int]:
    """Return the partitions of a scan: the one that it names, the one of its key, or all that are read here."""
    named = question.partition
    if named is not None and named >= store.partitions:
        what = f"there is no partition {named}: the store has {store.partitions}"
        raise BadBoundError(what, where="partition", fix=f"Send a number from 0 to {store.partitions - 1}")
    if named is not None:
        return (named,)
    return store.held if prefix is None or prefix.partition is None else (prefix.partition,)


def _asker_of(authorization: Authorization, store: ScannedStore) -> str:
    """Return whom, and what, a question is asked: a node whose partitions have changed cannot go on with a scan."""
    held = "" if len(store.held) == store.partitions else repr(tuple(store.held))
    return f"{authorization.principal.name} {held}"


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
