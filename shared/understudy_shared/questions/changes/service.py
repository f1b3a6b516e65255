"""The changes of a store, the same at nodes and routers: what each version of a range changed, as lines of JSON.

The order is that of versions, and within a version that of partitions. Behind the changes of a version comes a line
with its position. What differs is who reads the changelogs: see `Changes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from fastapi import APIRouter, Request, Response

from understudy_shared.auth.principals import Authorization
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.edge import Scope
from understudy_shared.http.problems import Problem, ProblemError, refused
from understudy_shared.http.target import parse_query
from understudy_shared.questions.changes.merged import FetchChanges, MergedChanges
from understudy_shared.questions.changes.question import MAX_VERSIONS, VersionLines, VersionRange, parse_versions
from understudy_shared.questions.export.bulk_answers import (
    BulkResponse,
    SendMessage,
    body_message,
    cut_pieces,
    head_message,
)
from understudy_shared.questions.export.service import patient
from understudy_shared.questions.scan.requests import parse_scan
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.scan.turns import Asker, ScanTurn, scan_turn
from understudy_shared.reads.bounds import NO_BOUND, BadBoundError, Refusal
from understudy_shared.reads.export_format import MEDIA_TYPES, ExportFormat, ndjson_line
from understudy_shared.reads.tokens import Position
from understudy_shared.server.app import is_head
from understudy_shared.spark.times import utc_text

_MEMBERS: Final = ("from", "to", "partition", "prefix", "fields", "longs")


@dataclass(frozen=True, slots=True)
class ChangesTurn:
    """A request for changes that was parsed and granted: the scan's members, and the versions, both inclusive. It is
    empty where `first` is above `last`.
    """

    turn: ScanTurn
    first: int
    last: int


class Changes(ABC):
    """The answers to questions for changes. `scans` has their stores, versions and limits."""

    def __init__(self, scans: Scans) -> None:
        self.scans = scans

    @abstractmethod
    def reader(self, asked: ChangesTurn) -> FetchChanges:
        """Return the function that reads the changes of a partition. It raises the problem of what cannot be read."""

    async def begins(self, name: str, given: Mapping[str, str], authorization: Authorization) -> ChangesTurn:
        """Judge a request, and choose its last version. Raises its problem."""
        unknown = next((each for each in given if each not in _MEMBERS), None)
        if unknown is not None:
            what = f"a question for changes takes no {unknown}"
            raise BadBoundError(what, where=unknown, fix=f"Leave it out; it takes {', '.join(_MEMBERS)}")
        store, versions = self.scans.store(name), parse_versions(given)
        of_rows = {each: text for each, text in given.items() if each not in ("from", "to")}
        # Without a bound of lag: the reader says which versions he wants.
        turn = scan_turn(store, parse_scan("export", of_rows), NO_BOUND, authorization)
        newest = (await self.scans.first_version(turn)).number
        if versions.since_us is not None:
            before = await self.scans.position_at(versions.since_us)
            first = 1 if before is None else before.version + 1
            if versions.last is None and newest < first:
                return ChangesTurn(turn, first, first - 1)  # nothing was committed since
            versions = VersionRange(first, versions.last)
        wanted = versions.first if versions.last is None else versions.last
        if newest < wanted:
            not_yet = refused(Refusal.VERSION_NOT_YET, candidates=[])
            where = "from" if versions.last is None else "to"
            fix = f"Retry when version {wanted} is there: the newest that all partitions show is {newest}"
            raise ProblemError(replace(not_yet, where=where, fix=fix))
        last = min(newest, versions.first + MAX_VERSIONS - 1) if versions.last is None else versions.last
        return ChangesTurn(turn, versions.first, last)


class _Lines:
    """The lines of one answer: the head, the changes, a line behind each version, and the end."""

    def __init__(self, asked: ChangesTurn, merged: MergedChanges) -> None:
        self.asked = asked
        self.found = 0
        self._merged = merged
        self._range = {"from": asked.first, "to": asked.last}

    def head(self) -> bytes:
        """Return what stands before the changes."""
        store, partitions = self.asked.turn.store, list(self.asked.turn.partitions)
        said = {"store": store.name, "lineage": store.lineage, **self._range, "partitions": partitions}
        return ndjson_line("changes", said)

    async def bodies(self) -> AsyncGenerator[bytes | memoryview]:
        """Yield the changes, in pieces of any size. Raises the problem of what cannot be read."""
        count = len(self.asked.turn.partitions)
        left, before = count, 0
        async with aclosing(self._merged.pieces()) as pieces:
            async for piece in pieces:
                yield piece.lines
                self.found += piece.found
                left -= piece.is_whole
                if not left:
                    yield self._version(piece, self.found - before)
                    left, before = count, self.found

    def end(self) -> bytes:
        """Return what stands behind the changes."""
        said = {"changes": self.found, **self._range, "partitions": len(self.asked.turn.partitions)}
        return ndjson_line("end", said)

    def _version(self, last: VersionLines, found: int) -> bytes:
        """Return the line behind a version, by its last piece."""
        store = self.asked.turn.store
        of = (ApplicationId(store.application_id), Lineage(store.lineage))
        position = Position(*of, last.version, last.committed_at_us).encode()
        said = {"version": last.version, "committed_at": utc_text(last.committed_at_us), "position": position}
        return ndjson_line("version", {**said, "changes": found})


class ChangesResponse(BulkResponse):
    """The answer to a request for changes."""

    noun = "a stream of changes"
    action = "changes-cut"

    def __init__(self, changes: Changes, store: str, given: Mapping[str, str]) -> None:
        super().__init__()
        self._changes, self._store, self._given = changes, store, given

    async def answer(self, scope: Scope, authorization: Authorization, send: SendMessage, asker: Asker) -> None:
        """See `BulkResponse`."""
        scans = self._changes.scans
        with scans.counted("changes", self._store, asker), scans.long_reads.begun_changes():
            asked = await self._changes.begins(self._store, self._given, authorization)
            fetch = patient(self._changes.reader(asked))
            merged = MergedChanges(asked.turn.partitions, asked.first, asked.last, fetch)
            lines = _Lines(asked, merged)
            try:
                if asked.first <= asked.last:
                    await merged.begin()
                await self._send(lines, send, only_head=is_head(Request(scope)))
            finally:
                scans.long_reads.changes_sent += lines.found
                await merged.close()

    async def broken_off(self, problem: Problem) -> bytes:
        """See `BulkResponse`."""
        return ndjson_line("error", problem.as_dict())

    async def _send(self, lines: _Lines, send: SendMessage, *, only_head: bool) -> None:
        turn, last = lines.asked.turn, lines.asked.last
        await send(head_message(MEDIA_TYPES[ExportFormat.NDJSON], last, len(turn.partitions)))
        if not only_head:
            await send(body_message(lines.head()))
        if not only_head and lines.asked.first <= last:
            async with aclosing(lines.bodies()) as bodies:
                async for body in bodies:
                    for piece in cut_pieces([body]):
                        await send(body_message(piece))
        if not only_head:
            await send(body_message(lines.end()))
        await send(body_message(b"", more=False))


def changes_routes(changes: Changes) -> APIRouter:
    """Make `/v1/stores/{store}/changes`."""
    routes = APIRouter()

    @routes.get("/v1/stores/{store}/changes", response_class=ChangesResponse)
    async def changed(store: str, request: Request) -> Response:
        """Send what each version of a range changed."""
        return ChangesResponse(changes, store, parse_query(request.scope["query_string"]))

    return routes
