"""The streams of a process' watches: how many there are, what each sends, and how it ends.

A stream has no queue: when it is woken, it asks its source what to send next. One task checks all streams each second.

Rule: nothing is sent before the first event is made, so a watch that cannot begin is answered with a problem document.
If the service ends a watch, it sends a last event with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any, Final, NamedTuple

from fastapi import Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import Receive, Scope, Send
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.watch.events import (
    MAX_RETRY_MS,
    MEDIA_TYPE,
    MIN_RETRY_MS,
    EndReason,
    KeyEvent,
    end_event,
)
from understudy_shared.server.app import AFTERWARDS, is_head
from understudy_shared.server.connection_limits import ENDLESS

LOOK_S: Final = 1.0
"""Time between two checks of all streams: whether their credentials still cover their keys, and which were idle long.
"""

HEARTBEAT_S: Final = 15.0
"""Time without an event after which a stream sends a keep-alive. Proxies and clients give up after 60 seconds."""

WOKEN_AT_ONCE: Final = 25
"""Number of streams that send in one turn of the event loop: about 1 ms, in which no lookup is answered."""

MAX_WATCHED_KEYS: Final = 200_000
"""Limit on the keys of all watches of a process: each takes some hundred bytes and its value."""

END_S: Final = 2.0
"""Longest time for the last events of all watches when the service stops."""

log = logging.getLogger(__name__)

LEFT, UNREAD = "left", "unread"
"""Two more reasons why a watch ended, besides `EndReason`: its client left, or did not read the events."""


class WatchEndedError(Exception):
    """The service ends a watch, for this reason."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason)
        self.reason = reason


class WatchStream:
    """The stream of one watcher. `grants` returns why it must end, or None while its credential covers its keys."""

    __slots__ = ("_ended", "_waiter", "_woken", "grants", "is_sending", "keys", "sent_s")

    def __init__(self, keys: int, grants: Callable[[], EndReason | None]) -> None:
        self.keys = keys
        self.grants = grants
        self.is_sending = False
        """Whether it waits until its client reads."""
        self.sent_s = monotonic()
        """Time of the last send."""
        self._woken = False
        self._ended: EndReason | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether a keep-alive is due."""
        return not self.is_sending and monotonic() - self.sent_s >= HEARTBEAT_S

    def wake(self) -> None:
        """Wake it, so that it asks its source for the next events."""
        self._woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, reason: EndReason) -> None:
        """End it after the event that it is sending."""
        if self._ended is None:
            self._ended = reason
            self.wake()

    async def wait(self) -> None:
        """Wait until it is woken; return at once if it was woken since the last call. Raises WatchEndedError if it was
        ended.
        """
        if not self._woken and self._ended is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.require_open()
        self._woken = False

    def require_open(self) -> None:
        """Raise WatchEndedError if it was ended."""
        if self._ended is not None:
            raise WatchEndedError(self._ended)


class WatchStreams:
    """The streams of a process, at most `max_watchers`."""

    def __init__(self, max_watchers: int) -> None:
        self.keys = 0
        self.events: Counter[str] = Counter()
        self.coalesced = 0
        """Number of changes that were not sent because a later one came before its watcher read."""
        self.ended: Counter[str] = Counter()
        self._max_watchers = max_watchers
        self._streams: set[WatchStream] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_ending = False
        self._emptied = asyncio.Event()
        """Set when the last stream has ended while the service stops."""

    def __len__(self) -> int:
        return len(self._streams)

    def enter(self, keys: int, grants: Callable[[], EndReason | None]) -> WatchStream:
        """Return a new stream. Raises an overloaded problem above the limits."""
        if self._is_ending:
            raise ProblemError(Problem(ProblemType.NOT_INITIALISED, "this service stops", fix="Ask another one"))
        if len(self._streams) >= self._max_watchers:
            what = f"{len(self._streams)} watches are open, as many as max_watchers"
            raise ProblemError(
                Problem(ProblemType.OVERLOADED, what, fix="Watch many keys in one watch, or ask another service")
            )
        if self.keys + keys > MAX_WATCHED_KEYS:
            what = f"{self.keys} keys are watched, and {keys} more are above the limit of {MAX_WATCHED_KEYS}"
            raise ProblemError(Problem(ProblemType.OVERLOADED, what, fix="Ask another service"))
        stream = WatchStream(keys, grants)
        self._streams.add(stream)
        self.keys += keys
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="look at watches")
        return stream

    def leave(self, stream: WatchStream, why: str) -> None:
        """Count a stream that has ended."""
        self._streams.discard(stream)
        self.keys -= stream.keys
        self.ended[why] += 1
        if self._is_ending and not self._streams:
            self._emptied.set()
        if not self._streams and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def end(self) -> None:
        """End all streams for good: the service stops. Return when their last events are sent, or after a while."""
        self._is_ending = True
        for few in slices_of(self._streams):
            for stream in few:
                stream.end(EndReason.STOPPING)
            await asyncio.sleep(0)
        if self._streams:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._emptied.wait()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for few in slices_of(self._streams):
                for stream in few:
                    self._look_at(stream)
                await asyncio.sleep(0)

    def _look_at(self, stream: WatchStream) -> None:
        try:
            reason = stream.grants()
        except Exception:
            log.exception("the grants of a watch could not be checked", extra={"action": "watch-grants-failed"})
            reason = EndReason.FORBIDDEN
        if reason is not None:
            stream.end(reason)
        elif stream.is_quiet:
            stream.wake()

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of watches."""
        yield GaugeMetricFamily("understudy_watches", "Watches that are open", len(self._streams))
        yield GaugeMetricFamily("understudy_watched_keys", "Keys of all watches that are open", self.keys)
        events = CounterMetricFamily("understudy_watch_events", "Events sent about keys, by kind", labels=("event",))
        for kind in KeyEvent:
            events.add_metric((kind,), self.events[kind])
        yield events
        yield CounterMetricFamily(
            "understudy_watch_coalesced_changes",
            "Changes that were left out because a later one came before the client read",
            self.coalesced,
        )
        ended = CounterMetricFamily("understudy_watches_ended", "Watches that ended, by reason", labels=("reason",))
        for reason in (LEFT, UNREAD, *EndReason):
            ended.add_metric((reason,), self.ended[reason])
        yield ended


def slices_of(streams: Iterable[WatchStream]) -> Iterator[Sequence[WatchStream]]:
    """Yield the streams in slices, one for each turn of the event loop."""
    found = list(streams)
    for start in range(0, len(found), WOKEN_AT_ONCE):
        yield found[start : start + WOKEN_AT_ONCE]


PIECE_BYTES: Final = 64 * 1024
"""Number of bytes given to the connection at a time: it accepts more once the client has read."""

HEADERS: Final = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)

Events = AsyncGenerator[bytes, None]
"""Events as they are sent. The generator ends with WatchEndedError."""


class Begun(NamedTuple):
    """A watch that has begun: its stream, its events, and the first of them."""

    stream: WatchStream
    events: Events
    first: bytes


async def begun(streams: WatchStreams, stream: WatchStream, make: Callable[[], Events]) -> Begun:
    """Return a stream, the events that `make` returns, and the first. Raises a problem if the watch cannot begin."""
    try:
        events = make()
        return Begun(stream, events, await anext(events))
    except WatchEndedError as ended:
        streams.leave(stream, ended.reason)
        fix = "Connect again after a second"
        raise ProblemError(Problem(ProblemType.NOT_INITIALISED, ended.reason.detail, fix=fix)) from None
    except BaseException:
        streams.leave(stream, LEFT)
        raise


Begin = Callable[[Scope], Awaitable[Begun]]


class WatchResponse(Response):
    """The answer to a request for a watch; a problem if it cannot begin. Its events are sent `AFTERWARDS`."""

    media_type = MEDIA_TYPE

    def __init__(self, streams: WatchStreams, begin: Begin) -> None:
        super().__init__()
        self._streams, self._begin = streams, begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ENDLESS] = True  # a service that stops does not wait for its end
        begun = await self._begin(scope)
        scope[AFTERWARDS] = _Sender(self._streams, begun, is_head=is_head(Request(scope))).send


class _Sender:
    """The sender of a watch. It sends no faster than its client reads, and ends when the client leaves."""

    __slots__ = ("_begun", "_is_head", "_streams")

    def __init__(self, streams: WatchStreams, begun: Begun, *, is_head: bool) -> None:
        self._streams, self._begun, self._is_head = streams, begun, is_head

    async def send(self, receive: Receive, send: Send) -> None:
        """Send the events until either side ends."""
        asker = Asker()
        await asker.while_it_waits(receive, self._sent(send, asker))

    async def _sent(self, send: Send, asker: Asker) -> None:
        stream, events, first = self._begun
        why: str = LEFT
        try:
            async with aclosing(events):
                await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
                if self._is_head:
                    await send(_body(b"", more=False))
                    return
                await _send(stream, first, send, asker)
                async for piece in events:
                    await _send(stream, piece, send, asker)
        except WatchEndedError as ended:
            why = await _sent_end(ended.reason, send)
        except UnderstudyError as error:
            log.info("a watch cannot go on: %s", error, extra={"action": "watch-ended"})
            why = await _sent_end(EndReason.UNAVAILABLE, send)
        except Exception:
            log.exception("a watch ended by a bug", extra={"action": "watch-failed"})
            why = await _sent_end(EndReason.UNAVAILABLE, send)
        finally:
            self._streams.leave(stream, UNREAD if stream.is_sending else why)


async def _send(stream: WatchStream, events: bytes, send: Send, asker: Asker) -> None:
    """Send events, a piece at a time: the connection accepts more once the client has read."""
    stream.is_sending = True
    for at in range(0, len(events), PIECE_BYTES):
        await send(_body(events[at : at + PIECE_BYTES]))
    # A client that is gone by now did not read: a connection with room takes a piece at once.
    stream.is_sending, stream.sent_s = asker.is_gone, monotonic()


async def _sent_end(reason: EndReason, send: Send) -> str:
    retry_ms = random.randint(MIN_RETRY_MS, MAX_RETRY_MS)  # noqa: S311
    await send(_body(end_event(reason, retry_ms)))
    await send(_body(b"", more=False))
    return reason


def _body(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}
