"""The stream of the overview: the cluster is read once a second, however many viewers there are.

A viewer has no queue. It remembers the tick of its last message, and gets the changes since then when its connection
has room. So a slow viewer skips ticks, and a very slow one gets the whole document again. Messages are sent in pieces,
so a viewer that does not read holds one piece and the text that all viewers share.

For browsers with scripts the page is rendered here at each change, and the changed parts are sent. Viewers with the
same choices share a drawing. A viewer remembers which version of each part it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from understudy_shared.auth.access import is_known
from understudy_shared.base.background import in_slices
from understudy_shared.base.clock import Clock
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.page.render import drawn_parts, joined, page_title
from understudy_shared.page.replicas import PageQuery
from understudy_shared.server.app import is_head
from understudy_shared.server.connection_limits import ENDLESS
from understudy_shared.spark.temporal import utc_text

log = logging.getLogger(__name__)

MAX_VIEWERS = 500
TICK_MS = 1000
MAX_PAUSE_MS = 10_000

LOOP_SHARE = 0.1
"""Largest share of the loop's time for reading the cluster, and for drawing. A costly page is drawn less often, and in
a huge cluster in trouble the ticks are further apart, but at most MAX_PAUSE_MS."""

MAX_KEPT = 16
"""Limit on the cached drawings, each for viewers with the same choices."""

HEARTBEAT_S = 1.0
PIECE_BYTES = 64 * 1024

MAX_TEXTS_BYTES = 8 * 1024 * 1024
"""Limit on the bytes of the messages of one tick. Above it, further late viewers get the whole document, which all
share. In a large cluster in trouble the changes since a tick are nearly as long as the document."""


class OverviewDocument(Protocol):
    """The data of the page. `tick` is the time of its last change."""

    @property
    def tick(self) -> int: ...

    @property
    def generated_at(self) -> str | None: ...

    def documents(self) -> Generator[None, None, dict[str, Any]]:
        """Make the document, in slices."""


class StreamedOverview(OverviewDocument, Protocol):
    """An overview that also makes messages: of the whole, and of the changes since one of the `known` ticks."""

    @property
    def known(self) -> tuple[int, ...]: ...

    def whole(self) -> bytes: ...

    def since(self, tick: int) -> bytes: ...


Shown = TypeVar("Shown", bound=StreamedOverview)


class Drawing(NamedTuple):
    """The parts of the page by name, at a tick."""

    tick: int
    title: str
    parts: Mapping[str, str]


class Drawings:
    """The last drawings, by the choices of the viewers."""

    def __init__(self) -> None:
        self._kept: OrderedDict[PageQuery, Drawing] = OrderedDict()
        self._due: dict[PageQuery, float] = {}
        """The time at which each page may be drawn again."""
        self._document: tuple[int, dict[str, Any]] | None = None
        self._drawing = asyncio.Lock()

    def is_due(self, query: PageQuery, now: OverviewDocument) -> bool:
        """Whether the drawing of this overview exists, or may be made."""
        known = self._kept.get(query)
        return (known is not None and known.tick >= now.tick) or self._due.get(query, 0) <= monotonic()

    async def of(self, query: PageQuery, now: OverviewDocument) -> Drawing:
        """Return the drawing of this overview. The first caller makes it."""
        async with self._drawing:
            known = self._kept.get(query)
            if known is None or known.tick < now.tick:
                began_s = monotonic()
                known = self._kept[query] = await self._drawn(query, now)
                self._pace(query, began_s)
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(query)
            return known

    async def _drawn(self, query: PageQuery, now: OverviewDocument) -> Drawing:
        if self._document is None or self._document[0] != now.tick:
            self._document = now.tick, await in_slices(now.documents())
        _, document = self._document
        parts = {name: await joined(pieces) for name, pieces in drawn_parts(document, query)}
        return Drawing(now.tick, page_title(document["application_id"], document["health"]), parts)

    def _pace(self, query: PageQuery, began_s: float) -> None:
        """Set the time of the next drawing, so that all drawings together do not exceed their share of the loop."""
        now_s = monotonic()
        self._due = {each: due_s for each, due_s in self._due.items() if due_s > now_s - MAX_PAUSE_MS / 1000}
        pause_s = (now_s - began_s) * (len(self._due) + 1) / LOOP_SHARE
        self._due[query] = now_s + min(pause_s, MAX_PAUSE_MS / 1000)


class Viewer:
    """The connection of one browser to the page, and the parts that it has."""

    def __init__(self, drawings: Drawings, query: PageQuery) -> None:
        self._drawings = drawings
        self._query = query
        self._has: dict[str, int] = {}

    def is_due(self, now: OverviewDocument) -> bool:
        """Whether a message may be made now. Requests have priority, so a costly message is made less often."""
        return self._drawings.is_due(self._query, now)

    async def event(self, now: OverviewDocument) -> bytes:
        """Return an event with the parts that the browser lacks."""
        drawing = await self._drawings.of(self._query, now)
        new = {name: text for name, text in drawing.parts.items() if self._has.get(name) != hash(text)}
        self._has |= {name: hash(text) for name, text in new.items()}
        data = {"generated_at": now.generated_at, "title": drawing.title, "html": "".join(new.values())}
        return b"event: page\ndata: %b\n\n" % orjson.dumps(data)


class OverviewFeed(Generic[Shown]):
    """The stream for all viewers. `look` makes the current overview, given the previous one. It is called once per tick
    while there are viewers; `looks` counts the calls.
    """

    def __init__(
        self,
        look: Callable[[Shown | None], Awaitable[Shown]],
        clock: Clock,
        *,
        tick_ms: int = TICK_MS,
        max_viewers: int = MAX_VIEWERS,
    ) -> None:
        self.viewers = 0
        self.looks = 0
        self._look = look
        self._clock = clock
        self._tick_ms = tick_ms
        self._max_viewers = max_viewers
        self._is_ending = False
        self._now: Shown | None = None
        self._texts: dict[int | None, bytes] = {}
        """The current messages, by the tick of the viewers that get them."""
        self._looked_ms = self._good_until_ms = float("-inf")
        """The start of the last read, and the time until which a new viewer may get its result."""
        self._looking = asyncio.Lock()
        self._watched = asyncio.Event()
        self._changed = asyncio.Event()
        """An event that is set when there is a new overview, and then replaced."""

    def __repr__(self) -> str:
        return f"OverviewFeed({self.viewers} viewers)"

    # ---- reading the cluster

    async def run(self) -> None:
        """Read the cluster once per tick while there are viewers. An error does not end the task."""
        while True:
            await self._watched.wait()
            began_ms = self._clock.monotonic_ms()
            try:
                await self.overview(max_age_ms=0)
            except Exception:
                log.exception("the overview could not be made", extra={"action": "overview-failed"})
            now_ms = self._clock.monotonic_ms()
            wait_ms = pause_ms(now_ms - began_ms, self._tick_ms)
            self._good_until_ms = max(self._good_until_ms, now_ms + 2 * wait_ms)
            await asyncio.sleep(wait_ms / 1000)

    async def overview(self, *, max_age_ms: float = TICK_MS) -> Shown:
        """Return the overview, at most `max_age_ms` old. Concurrent callers share one read."""
        async with self._looking:
            age_ms = self._clock.monotonic_ms() - self._looked_ms
            if self._now is None or max_age_ms <= 0 or age_ms > max_age_ms:
                await self._tick()
            assert self._now is not None
            return self._now

    async def _tick(self) -> None:
        """Read the cluster, and wake all viewers if it has changed."""
        before, began_ms, self.looks = self._now, self._clock.monotonic_ms(), self.looks + 1
        self._now, self._texts = await self._look(before), {}
        was_good = self._is_good()
        self._looked_ms = began_ms
        self._good_until_ms = max(self._good_until_ms, self._clock.monotonic_ms() + 2 * self._tick_ms)
        # Without a change, this one only goes to viewers that wait for a recent overview.
        if before is None or self._now.tick != before.tick or not was_good:
            self._tell()

    def _is_good(self) -> bool:
        return self._clock.monotonic_ms() <= self._good_until_ms

    def end(self) -> None:
        """End the streams of all viewers, and accept no more: the service stops."""
        self._is_ending = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- a viewer's side

    def respond(self, request: Request, written: Viewer | None = None) -> Response:
        """Return the stream of changes for one viewer: documents, or the events that `written` makes for it. The stream
        ends when the viewer's credential is revoked. Raises ProblemError if the service stops, or there are too many
        viewers.
        """
        if is_head(request):
            return Response(media_type=EventStream.media_type)
        if self._is_ending:
            raise ProblemError(Problem(ProblemType.NOT_INITIALISED, "this router stops", fix="Ask another router"))
        if self.viewers >= self._max_viewers:
            detail = f"{self.viewers} viewers watch this router"
            raise ProblemError(Problem(ProblemType.TOO_MANY_VIEWERS, detail, fix="Close some, or ask another router"))
        tick = _tick_of(request.headers.get("last-event-id"))
        return EventStream(self.messages(tick, is_known(request.scope), written), self)

    def enter(self) -> None:
        self.viewers += 1
        self._watched.set()

    def leave(self) -> None:
        self.viewers -= 1
        if not self.viewers:
            self._watched.clear()

    async def messages(
        self, tick: int | None, is_known: Callable[[], bool] = lambda: True, written: Viewer | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the messages for a viewer that has the overview of `tick`; `None`: it has no overview."""
        while not self._is_ending and is_known():
            changed, now = self._changed, self._now
            is_due = now is not None and now.tick != tick and self._is_good()
            if now is not None and is_due and (written is None or written.is_due(now)):
                text = self._message(tick, now) if written is None else await written.event(now)
                for piece in _pieces(text):
                    if self._is_ending:
                        return
                    yield piece
                tick = now.tick
                continue
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await changed.wait()
            except TimeoutError:
                at = {"generated_at": utc_text(self._clock.wall_us())}
                yield b"event: heartbeat\ndata: %b\n\n" % orjson.dumps(at)

    def _message(self, tick: int | None, now: Shown) -> bytes:
        since = tick if tick in now.known else None
        if since not in self._texts and sum(map(len, self._texts.values())) > MAX_TEXTS_BYTES:
            since = None
        text = self._texts.get(since)
        if text is None:
            name, data = (b"overview", now.whole()) if since is None else (b"delta", now.since(since))
            text = self._texts[since] = _event(name, now.tick, data)
        return text


class EventStream(StreamingResponse):
    """A stream of server-sent events to one viewer. The viewer counts until its connection ends, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncIterator[bytes], feed: OverviewFeed[Any]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(messages, headers=headers)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ENDLESS] = True
        self._feed.enter()
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.leave()


def pause_ms(took_ms: float, tick_ms: float) -> float:
    """Return the pause in ms after a read that took `took_ms`."""
    return max(tick_ms - took_ms, min(took_ms * (1 / LOOP_SHARE - 1), MAX_PAUSE_MS))


def _event(name: bytes, tick: int, data: bytes) -> bytes:
    """Encode one event; JSON of one line has no line breaks."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (tick, name, data)


def _pieces(text: bytes) -> Iterator[bytes]:
    for first in range(0, len(text), PIECE_BYTES):
        yield text[first : first + PIECE_BYTES]


def _tick_of(last_event_id: str | None) -> int | None:
    text = last_event_id or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
