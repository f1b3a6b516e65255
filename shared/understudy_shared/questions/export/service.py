"""Exports of a store, the same at nodes and routers: all rows of a question as one stream, at one version.

Rule: nothing is sent before the version is chosen and the first part is read, so an export that cannot begin is
answered with a problem document. A stream ends with a record that has the number of rows. If it fails, it ends with an
error record instead, and the connection is broken.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, ParamSpec, TypeVar

from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.permissions import shown_problem
from understudy_shared.auth.principals import Authorization
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import Receive, Scope, Send, bug
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.questions.export.hop import ExportPart
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.page import Place
from understudy_shared.questions.scan.requests import ExportRequest, ScanTurn, parse_export, scan_turn
from understudy_shared.questions.scan.service import Scans, given_members
from understudy_shared.reads.bounds import ReadVersion, Refusal
from understudy_shared.reads.export_format import MEDIA_TYPES, ExportFormat, csv_line, ndjson_line
from understudy_shared.server.app import is_head
from understudy_shared.server.connection_limits import ENDLESS

PIECE_BYTES: Final = 256 * 1024
"""Number of bytes given to the connection at a time: it accepts more once the client has read."""

SendMessage = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger(__name__)


class BulkResponse(Response, ABC):
    """The answer to a request for many rows. It reads no faster than its client, and ends when the client leaves.
    `noun` and `action` name it in the log.
    """

    noun: str
    action: str

    @abstractmethod
    async def answer(self, scope: Scope, authorization: Authorization, send: SendMessage, asker: Asker) -> None:
        """Send the answer. Raises a problem if it cannot begin or continue."""

    @abstractmethod
    async def broken_off(self, problem: Problem) -> bytes:
        """Return the bytes that replace the end of a stream that failed after its beginning."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ENDLESS] = True  # a service that stops does not wait for its end
        asker = Asker()
        await asker.while_it_waits(receive, self._answer(scope, send, asker))

    async def _answer(self, scope: Scope, send: Send, asker: Asker) -> None:
        has_begun = False

        async def sent(message: dict[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        authorization = authorization_of(scope)
        try:
            await self.answer(scope, authorization, sent, asker)
        except Exception as error:
            if not has_begun:
                raise
            problem = problem_of(error) if isinstance(error, UnderstudyError) else bug(error)
            log.warning("%s ended before its end: %s", self.noun, problem.detail, extra={"action": self.action})
            await send(body_message(await self.broken_off(shown_problem(authorization.principal, problem))))


def cut_pieces(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the same bytes in pieces that are not empty, and not longer than `PIECE_BYTES`."""
    for piece in pieces:
        if isinstance(piece, bytes) and len(piece) <= PIECE_BYTES:
            if piece:
                yield piece
            continue
        for at in range(0, len(piece), PIECE_BYTES):
            yield bytes(piece[at : at + PIECE_BYTES])


def head_message(media_type: str, version: int, partitions: int, *more: tuple[bytes, bytes]) -> dict[str, Any]:
    headers = [
        (b"content-type", media_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        (b"understudy-version", b"%d" % version),
        (b"understudy-partitions", b"%d" % partitions),
        *more,
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body_message(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


PARTITIONS_AHEAD: Final = 2
"""Number of partitions whose first part is fetched ahead. With the part that is being sent and its
successor, an export holds up to four parts.
"""

FetchPart = Callable[[Place, int | None], Coroutine[None, None, ExportPart]]
"""A function that reads the part after a place. Its second argument is the next partition, None at the last one."""


class PartsAhead:
    """The parts of the `partitions` from `start` on, in the order of a scan: partition after partition.

    While a part is sent, the next one of its partition and the first ones of the next partitions are being
    fetched. So a client waits for the nodes only once, and the nodes work in parallel.
    """

    def __init__(self, start: Place, partitions: Sequence[int], fetch: FetchPart) -> None:
        self.partitions = partitions[partitions.index(start.partition) :]
        self._fetch = fetch
        self._left = deque([start, *map(Place, self.partitions[1:])])
        self._coming: deque[tuple[int, asyncio.Task[ExportPart]]] = deque()

    async def next(self) -> ExportPart | None:
        """Return the next part; None after the last. Raises its problem."""
        while self._left and len(self._coming) <= PARTITIONS_AHEAD:
            place = self._left.popleft()
            self._coming.append((place.partition, self._begin(place)))
        if not self._coming:
            return None
        partition, task = self._coming[0]
        part = await task
        self._coming.popleft()
        if not part.page.is_end:
            self._coming.appendleft((partition, self._begin(Place(partition, part.page.after))))
        return part

    def _begin(self, place: Place) -> asyncio.Task[ExportPart]:
        at = self.partitions.index(place.partition) + 1
        following = self.partitions[at] if at < len(self.partitions) else None
        return asyncio.get_running_loop().create_task(self._fetch(place, following), name="fetch a part of an export")

    async def close(self) -> None:
        """Cancel the running fetches."""
        self._left.clear()
        for _, task in self._coming:
            task.cancel()
        await asyncio.gather(*(task for _, task in self._coming), return_exceptions=True)
        self._coming.clear()


PATIENCE_S: Final = 20.0
"""Time for which a part is retried after a transient problem."""

LOOK_AGAIN_S: Final = 0.1
_MAY_PASS: Final = frozenset((429, 503, 504))
ARROW_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The bytes after the last message of an Arrow stream."""

ARROW_BROKEN: Final = b"\xff\xff\xff\xff\x08\x00\x00\x00"
"""The beginning of a message that never follows: a reader that ignores metadata fails here, and does not take the
broken stream for a whole one.
"""

ERROR_RECORD_S: Final = 1.0
"""Time limit for a node to make the record that reports an error in an Arrow stream."""

P = ParamSpec("P")
T = TypeVar("T")


class Exports(ABC):
    """The exports of a service. `scans` knows its stores, and which version is read."""

    def __init__(self, scans: Scans) -> None:
        self.scans = scans

    @abstractmethod
    def part_reader(self, turn: ScanTurn, version: ReadVersion, form: ExportFormat, asker: Asker) -> FetchPart:
        """Return the function that reads a part of an export. It raises a problem if a partition cannot be read."""

    @abstractmethod
    async def arrow_last(self, turn: ScanTurn, version: ReadVersion, said: Mapping[str, object]) -> bytes:
        """Return the last record batch of an Arrow stream for this question. `said` has the member `end` or `error`.
        Raises a problem if the batch cannot be made.
        """


class ExportStream:
    """An export at a chosen version: its parts, and the number of rows sent so far."""

    def __init__(
        self, exports: Exports, turn: ScanTurn, asked: ExportRequest, version: ReadVersion, read: PartsAhead
    ) -> None:
        self.rows = 0
        self.asked = asked
        self.turn = turn
        self.version = version
        self.parts = read
        self._exports = exports
        self._shape = ""

    async def first(self) -> ExportPart:
        """Read the first part. Raises a problem if it cannot be read."""
        first = await self.parts.next()
        assert first is not None, "a scan has a partition"
        self._shape = first.shape
        return first

    def head(self, first: ExportPart) -> bytes:
        """Return the bytes before the rows."""
        if self.asked.format is not ExportFormat.NDJSON:
            return first.head
        store = self.turn.store
        said = {"store": store.name, **first.page.stamp, "lineage": store.lineage}
        return ndjson_line("export", {**said, "partitions": list(self.parts.partitions)})

    def counted(self, part: ExportPart) -> Sequence[bytes | memoryview]:
        """Count the rows of a part, and return its pieces. Raises a problem if its columns are not the first part's."""
        if part.shape != self._shape:
            what = "the columns of the store differ between two nodes, or have changed since the export began"
            raise ProblemError(Problem(ProblemType.BAD_REPLY, what, fix="Begin again"))
        self.rows += part.page.found
        self._exports.scans.long_reads.exported[self.asked.format] += part.page.found
        return part.pieces

    async def end(self) -> bytes:
        """Return the bytes after the rows."""
        said = {"rows": self.rows, "version": self.version.number, "partitions": len(self.parts.partitions)}
        match self.asked.format:
            case ExportFormat.NDJSON:
                return ndjson_line("end", said)
            case ExportFormat.CSV:
                return csv_line("end", said) if self.asked.has_trailer else b""
            case ExportFormat.ARROW:
                last = partial(self._exports.arrow_last, self.turn, self.version, {"end": said})
                return await patiently(last) + ARROW_END

    async def broken_off(self, problem: Problem) -> bytes:
        """Return the bytes that replace the end of a stream that failed."""
        said = problem.as_dict()
        match self.asked.format:
            case ExportFormat.NDJSON:
                return ndjson_line("error", said)
            case ExportFormat.CSV:
                return csv_line("error", said)
            case ExportFormat.ARROW:
                return await self._arrow_error(said) + ARROW_BROKEN

    async def _arrow_error(self, said: Mapping[str, object]) -> bytes:
        """Return the record of an error; b"" if it cannot be made, for example by a router that reaches no node."""
        try:
            async with asyncio.timeout(ERROR_RECORD_S):
                return await self._exports.arrow_last(self.turn, self.version, {"error": said})
        except (UnderstudyError, TimeoutError):
            return b""


class ExportResponse(BulkResponse):
    """The answer to a request for an export."""

    noun = "an export"
    action = "export-cut"

    def __init__(self, exports: Exports, store: str, given: Mapping[str, object], accept: str) -> None:
        super().__init__()
        self._exports, self._scans = exports, exports.scans
        self._store, self._given, self._accept = store, given, accept
        self._stream: ExportStream | None = None

    async def answer(self, scope: Scope, authorization: Authorization, send: SendMessage, asker: Asker) -> None:
        with self._scans.counted("export", self._store, asker):
            store, asked = self._scans.store(self._store), parse_export(self._given, self._accept)
            bound = self._scans.service.bound_of(store.name, asked.scan.bounds)
            turn = scan_turn(store, asked.scan, bound, authorization)
            begin = await self._scans.waited(turn)
            with self._scans.long_reads.begun_export(asked.format):
                version, start = begin or await self._scans.begins(turn)
                read = patient(self._exports.part_reader(turn, version, asked.format, asker))
                stream = ExportStream(self._exports, turn, asked, version, PartsAhead(start, turn.partitions, read))
                self._stream = stream
                try:
                    await self._send(stream, await stream.first(), send, only_head=is_head(Request(scope)))
                finally:
                    await stream.parts.close()

    async def broken_off(self, problem: Problem) -> bytes:
        assert self._stream is not None, "it has begun"
        return await self._stream.broken_off(problem)

    async def _send(self, stream: ExportStream, first: ExportPart, send: SendMessage, *, only_head: bool) -> None:
        await send(_head(stream, first))
        if not only_head:
            part: ExportPart | None = first
            await self._send_pieces(stream, [stream.head(first)], send)
            while part is not None:
                await self._send_pieces(stream, stream.counted(part), send)
                part = await stream.parts.next()
            await self._send_pieces(stream, [await stream.end()], send)
        await send(body_message(b"", more=False))

    async def _send_pieces(self, stream: ExportStream, pieces: Iterable[bytes | memoryview], send: SendMessage) -> None:
        for piece in cut_pieces(pieces):
            self._scans.long_reads.exported_bytes[stream.asked.format] += len(piece)
            await send(body_message(piece))


def patient(read: Callable[P, Coroutine[None, None, T]]) -> Callable[P, Coroutine[None, None, T]]:
    """Return the same function with retries of transient problems, as in `patiently`. Its first call retries only while
    an older version is being opened.
    """
    is_first = True

    async def read_patiently(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal is_first
        only_opening, is_first = is_first, False
        return await patiently(lambda: read(*args, **kwargs), only_opening=only_opening)

    return read_patiently


async def patiently(ask: Callable[[], Awaitable[T]], *, only_opening: bool = False) -> T:
    """Return the result of `ask`. Retry transient problems for `PATIENCE_S`; with `only_opening`, retry only while an
    older version is being opened.
    """
    until_s = monotonic() + PATIENCE_S
    while True:
        try:
            return await ask()
        except UnderstudyError as error:
            problem = problem_of(error)
            may_pass = problem.refusal is Refusal.VERSION_OPENING
            if not (may_pass or (not only_opening and problem.status in _MAY_PASS)) or monotonic() >= until_s:
                raise
        await asyncio.sleep(LOOK_AGAIN_S)


def _head(stream: ExportStream, first: ExportPart) -> dict[str, Any]:
    position = str(first.page.stamp.get("position")).encode()
    more = ((b"vary", b"accept"), (b"understudy-position", position))
    return head_message(MEDIA_TYPES[stream.asked.format], stream.version.number, len(stream.parts.partitions), *more)


def export_routes(exports: Exports) -> APIRouter:
    """Make `/v1/stores/{store}/export`."""
    routes = APIRouter()

    @routes.api_route("/v1/stores/{store}/export", methods=["GET", "POST"], response_class=ExportResponse)
    async def export(store: str, request: Request) -> Response:
        """Send the rows of a store as a stream, for a question in the query, or in the body."""
        return ExportResponse(exports, store, await given_members(request), request.headers.get("accept", ""))

    return routes
