"""The changes of a store, the same at nodes and routers: what each version of a range changed, as lines of JSON.

Changes are ordered by version, then by partition. After the changes of a version comes a line with its position. The
reply to a router is a line of JSON and opaque bytes: the lines of each version, which the router does not parse.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.principals import Authorization
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.edge import Scope
from understudy_shared.http.problems import Problem, ProblemError, refused
from understudy_shared.http.target import parse_query
from understudy_shared.questions.export.hop import PART_BYTES
from understudy_shared.questions.export.service import (
    BulkResponse,
    SendMessage,
    body_message,
    cut_pieces,
    head_message,
    patient,
)
from understudy_shared.questions.scan.hop import MAX_ROW_BYTES, ScanHop, scan_hop_of
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.requests import ScanTurn, parse_scan, scan_turn
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bound_parsing import parse_moment
from understudy_shared.reads.bounds import NO_BOUND, BadBoundError, Refusal
from understudy_shared.reads.export_format import MEDIA_TYPES, ExportFormat, ndjson_line
from understudy_shared.reads.hop_fields import BadHopError, cut, object_of, optional_whole, whole
from understudy_shared.reads.tokens import OtherLineageError, Position
from understudy_shared.server.app import is_head
from understudy_shared.spark.temporal import utc_text

PATH: Final = "/internal/v1/changes"

MAX_VERSIONS: Final = 1_000
"""Limit on the versions of one request: ten times as many as Spark retains by default."""

MAX_AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Memory for versions that are fetched ahead of the one being sent, over all partitions of one request."""

LEAST_AHEAD_BYTES: Final = 64 * 1024
"""The least share of that memory for a partition, however many there are."""

MOST_AHEAD_BYTES: Final = 1024 * 1024
MAX_CHANGES_PART_BYTES: Final = PART_BYTES + MAX_ROW_BYTES + 1024 * 1024
"""Limit on a reply."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The requested versions, both inclusive. Without `last` the range ends with the newest. With `since_us`, a moment
    as in a bound, it starts with the first version committed after that moment.
    """

    first: int
    last: int | None = None
    since_us: int | None = None


def parse_versions(given: Mapping[str, object]) -> VersionRange:
    """Parse the members `from` and `to`. Raises BadBoundError."""
    since, last = given.get("from"), _version(given, "to")
    if isinstance(since, str) and not since.isdigit():
        return VersionRange(0, last, parse_moment("from", since))
    first = _version(given, "from")
    if first is None:
        what = "the changes of a store are asked for from a version on"
        raise BadBoundError(what, where="from", fix="Send from=1m, or the version of the last answer, plus one")
    if last is not None and first > last:
        raise BadBoundError(f"from={first} is after to={last}", where="from", fix="Send the earlier version as from")
    if last is not None and last - first >= MAX_VERSIONS:
        what = f"from={first} to={last} are {last - first + 1} versions, and a request has at most {MAX_VERSIONS}"
        raise BadBoundError(what, where="to", fix="Send several requests")
    return VersionRange(first, last)


def _version(given: Mapping[str, object], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else value
    if type(number) is int and 1 <= number <= CEILING:
        return number
    raise BadBoundError(f"{name}={clipped(value)} is not a version", where=name, fix="Send a whole number from 1 on")


def ahead_bytes(partitions: int) -> int:
    """Return the limit on the bytes of a part after its first version, if the request reads this many partitions."""
    return min(MOST_AHEAD_BYTES, max(LEAST_AHEAD_BYTES, MAX_AHEAD_BYTES // max(1, partitions)))


class ChangesPlace(NamedTuple):
    """The place in the changes of a partition: a version, and how many of its changed keys were read already."""

    version: int
    looked_at: int = 0


class VersionLines(NamedTuple):
    """The lines of a version of one partition, or of a piece of it. `looked_at` counts the version's keys up to the end
    of this piece, `found` the lines. `is_whole`: it is the last piece of the version.
    """

    version: int
    lines: bytes | memoryview
    found: int
    looked_at: int
    is_whole: bool
    committed_at_us: int | None


@dataclass(frozen=True, slots=True)
class ChangesHop:
    """A request for the changes of a partition up to version `last`, without the first `skip` keys of its first
    version. `scan` names store, partition, first version, prefix and columns. Its `room_bytes` limit the versions after
    the first one; in a short part, the first one too.
    """

    scan: ScanHop
    last: int
    skip: int
    is_short: bool

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        return orjson.dumps({**self.scan.members(), "last": self.last, "skip": self.skip, "is_short": self.is_short})


def decode_changes_hop(body: bytes) -> ChangesHop:
    """Parse a request. Raises BadHopError, and BadBoundError for a malformed filter."""
    fields = object_of(body)
    try:
        is_short = fields["is_short"] is True
        return ChangesHop(scan_hop_of(fields), whole(fields, "last"), whole(fields, "skip"), is_short)
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def encode_changes(part: tuple[VersionLines, ...]) -> tuple[bytes | memoryview, ...]:
    """Return the bytes of a reply, in pieces."""
    said = [
        {
            "version": each.version,
            "bytes": len(each.lines),
            "found": each.found,
            "looked_at": each.looked_at,
            "is_whole": each.is_whole,
            "committed_at_us": each.committed_at_us,
        }
        for each in part
    ]
    head = orjson.dumps({"versions": said}, option=orjson.OPT_APPEND_NEWLINE)
    return (head, *(each.lines for each in part))


def decode_changes(body: bytes, first: int) -> tuple[VersionLines, ...]:
    """Parse a reply whose first version is `first`. Raises BadHopError."""
    at = body.find(b"\n")
    said = object_of(body[: max(0, at)]).get("versions")
    if not isinstance(said, list) or not said or not all(isinstance(each, dict) for each in said):
        raise BadHopError("the reply to a question for changes has no versions")
    try:
        lines = cut(body, [whole(each, "bytes") for each in said], at + 1)
        found = tuple(_of_version(each, text) for each, text in zip(said, lines, strict=True))
    except KeyError as error:
        raise BadHopError(f"the reply to a question for changes has no {error}") from None
    if [each.version for each in found] != list(range(first, first + len(found))):
        raise BadHopError(f"the reply to a question for changes from version {first} on has other versions")
    return found


def _of_version(said: dict[str, Any], lines: bytes) -> VersionLines:
    return VersionLines(
        whole(said, "version"),
        lines,
        whole(said, "found"),
        whole(said, "looked_at"),
        said["is_whole"] is True,
        optional_whole(said, "committed_at_us"),
    )


PARTITIONS_AHEAD: Final = 2
"""Number of partitions whose next part is fetched ahead."""

FetchChanges = Callable[[int, ChangesPlace, bool], Coroutine[None, None, tuple[VersionLines, ...]]]
"""A function that reads the changes of a partition after a place; a short part if the flag is set. It raises a problem
if they cannot be read.
"""


class _Partition:
    """The buffered changes of a partition, and the fetch of the next ones."""

    def __init__(self, number: int, first: int, fetch: FetchChanges) -> None:
        self.coming: asyncio.Task[tuple[VersionLines, ...]] | None = None
        self._number = number
        self._place = ChangesPlace(first)
        self._is_short = True
        self._fetch = fetch
        self._there: deque[VersionLines] = deque()

    def begin(self) -> None:
        """Start to fetch the next part, unless the buffer has pieces or a fetch is running."""
        if not self._there and self.coming is None:
            fetched = self._fetch(self._number, self._place, self._is_short)
            self.coming = asyncio.get_running_loop().create_task(fetched, name="fetch changes of a partition")
            self._is_short = False

    async def arrive(self) -> None:
        """Wait until the buffer has pieces. Raises the problem of the fetch."""
        self.begin()
        if self.coming is not None:
            self._there.extend(await self.coming)
            self.coming = None

    async def next(self) -> VersionLines:
        """Return the next piece of a version. Raises its problem."""
        await self.arrive()
        piece = self._there.popleft()
        is_whole = piece.is_whole
        self._place = ChangesPlace(piece.version + 1) if is_whole else ChangesPlace(piece.version, piece.looked_at)
        return piece


class MergedChanges:
    """The changes of `partitions` from version `first` to `last`."""

    def __init__(self, partitions: Sequence[int], first: int, last: int, fetch: FetchChanges) -> None:
        self._versions = range(first, last + 1)
        self._partitions = [_Partition(each, first, fetch) for each in partitions]

    async def begin(self) -> None:
        """Fetch a short part of each partition. Raises the first problem, before anything is sent."""
        for at, partition in enumerate(self._partitions):
            self._begin_from(at)
            await partition.arrive()

    async def pieces(self) -> AsyncGenerator[VersionLines]:
        """Yield the pieces of each version, partition after partition. Raises the problem of a partition that cannot be
        read, and OtherLineageError if a version was committed again while it was read.
        """
        for version in self._versions:
            committed_at_us: set[int] = set()
            for at, partition in enumerate(self._partitions):
                is_whole = False
                while not is_whole:
                    self._begin_from(at)
                    piece = await partition.next()
                    is_whole = piece.is_whole
                    if piece.committed_at_us is not None:
                        committed_at_us.add(piece.committed_at_us)
                    if len(committed_at_us) > 1:
                        raise OtherLineageError(f"version {version} was committed anew while its changes were read")
                    yield piece

    def _begin_from(self, at: int) -> None:
        for each in self._partitions[at : at + 1 + PARTITIONS_AHEAD]:
            each.begin()

    async def close(self) -> None:
        """Cancel the running fetches."""
        coming = [each.coming for each in self._partitions if each.coming is not None]
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


_MEMBERS: Final = ("from", "to", "partition", "prefix", "fields", "longs")


@dataclass(frozen=True, slots=True)
class ChangesTurn:
    """A granted request for changes, both versions inclusive. The range is empty if `first` is above `last`."""

    turn: ScanTurn
    first: int
    last: int


class ChangesService(ABC):
    """Answers to requests for changes. `scans` has the stores, versions and limits."""

    def __init__(self, scans: Scans) -> None:
        self.scans = scans

    @abstractmethod
    def reader(self, asked: ChangesTurn) -> FetchChanges:
        """Return the function that reads the changes of a partition. It raises a problem if they cannot be read."""

    async def begins(self, name: str, given: Mapping[str, str], authorization: Authorization) -> ChangesTurn:
        """Check a request, and choose its versions. Raises its problem."""
        unknown = next((each for each in given if each not in _MEMBERS), None)
        if unknown is not None:
            what = f"a question for changes takes no {unknown}"
            raise BadBoundError(what, where=unknown, fix=f"Leave it out; it takes {', '.join(_MEMBERS)}")
        store, versions = self.scans.store(name), parse_versions(given)
        of_rows = {each: text for each, text in given.items() if each not in ("from", "to")}
        # Without a bound of lag: the client names the versions.
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


class ChangesResponse(BulkResponse):
    """The answer to a request for changes."""

    noun = "a stream of changes"
    action = "changes-cut"

    def __init__(self, changes: ChangesService, store: str, given: Mapping[str, str]) -> None:
        super().__init__()
        self._changes, self._store, self._given = changes, store, given
        self._found = 0

    async def answer(self, scope: Scope, authorization: Authorization, send: SendMessage, asker: Asker) -> None:
        """See `BulkResponse`."""
        scans = self._changes.scans
        with scans.counted("changes", self._store, asker), scans.long_reads.begun_changes():
            asked = await self._changes.begins(self._store, self._given, authorization)
            partitions, fetch = asked.turn.partitions, patient(self._changes.reader(asked))
            merged = MergedChanges(partitions, asked.first, asked.last, fetch)
            try:
                if asked.first <= asked.last:
                    await merged.begin()
                await send(head_message(MEDIA_TYPES[ExportFormat.NDJSON], asked.last, len(partitions)))
                if not is_head(Request(scope)):
                    async with aclosing(self._bodies(asked, merged)) as bodies:
                        async for body in bodies:
                            for piece in cut_pieces([body]):
                                await send(body_message(piece))
                await send(body_message(b"", more=False))
            finally:
                scans.long_reads.changes_sent += self._found
                await merged.close()

    async def broken_off(self, problem: Problem) -> bytes:
        """See `BulkResponse`."""
        return ndjson_line("error", problem.as_dict())

    async def _bodies(self, asked: ChangesTurn, merged: MergedChanges) -> AsyncGenerator[bytes | memoryview]:
        """Yield the head, then the changes with a line after each version, then the end. Raises a problem if changes
        cannot be read.
        """
        store, count = asked.turn.store, len(asked.turn.partitions)
        of = ApplicationId(store.application_id), Lineage(store.lineage)
        range_ = {"from": asked.first, "to": asked.last}
        said = {"store": store.name, "lineage": store.lineage, **range_, "partitions": list(asked.turn.partitions)}
        yield ndjson_line("changes", said)
        left, before = count, 0
        async with aclosing(merged.pieces()) as pieces:
            async for piece in pieces:
                yield piece.lines
                self._found += piece.found
                left -= piece.is_whole
                if not left:
                    position = Position(*of, piece.version, piece.committed_at_us).encode()
                    said = {"version": piece.version, "committed_at": utc_text(piece.committed_at_us)}
                    yield ndjson_line("version", {**said, "position": position, "changes": self._found - before})
                    left, before = count, self._found
        yield ndjson_line("end", {"changes": self._found, **range_, "partitions": count})


def changes_routes(changes: ChangesService) -> APIRouter:
    """Make `/v1/stores/{store}/changes`."""
    routes = APIRouter()

    @routes.get("/v1/stores/{store}/changes", response_class=ChangesResponse)
    async def changed(store: str, request: Request) -> Response:
        """Send what each version of a range changed."""
        return ChangesResponse(changes, store, parse_query(request.scope["query_string"]))

    return routes
