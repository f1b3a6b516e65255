"""The sending of a watch: status and headers once its first event is made, then events as fast as the client reads.

Rule: nothing is sent before the first event is made, so a watch that cannot begin is a problem document. A watch that
the service ends has a last event, which says why.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import monotonic
from typing import Any, Final, NamedTuple

from fastapi import Request, Response

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import Receive, Scope, Send
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.turns import Asker
from understudy_shared.questions.watch.events import MAX_RETRY_MS, MEDIA_TYPE, MIN_RETRY_MS, EndReason, end_event
from understudy_shared.questions.watch.streams import LEFT, UNREAD, WatchEndedError, WatchStream, WatchStreams
from understudy_shared.server.app import AFTERWARDS, is_head
from understudy_shared.server.connection_limits import ENDLESS

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 64 * 1024
"""Number of bytes that are given to the connection at a time: it takes the next when the client has read."""

HEADERS: Final = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)

Events = AsyncGenerator[bytes, None]
"""Events as they are sent. It ends by WatchEndedError."""


class Begun(NamedTuple):
    """A watch that has begun: its stream, its events, and the first of them."""

    stream: WatchStream
    events: Events
    first: bytes


async def begun(streams: WatchStreams, stream: WatchStream, make: Callable[[], Events]) -> Begun:
    """Return a stream with the events that `make` returns, and the first of them. Raises the problem of a watch that
    cannot begin.
    """
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
    """The answer to a request for a watch, or the problem of one that cannot begin. Its events come `AFTERWARDS`."""

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
    """Send events, a piece at a time: the connection takes the next when the client has read."""
    stream.is_sending = True
    for at in range(0, len(events), PIECE_BYTES):
        await send(_body(events[at : at + PIECE_BYTES]))
    # A client that is gone now had not read: else the connection takes a piece at once.
    stream.is_sending, stream.sent_s = asker.is_gone, monotonic()


async def _sent_end(reason: EndReason, send: Send) -> str:
    retry_ms = random.randint(MIN_RETRY_MS, MAX_RETRY_MS)  # noqa: S311
    await send(_body(end_event(reason, retry_ms)))
    await send(_body(b"", more=False))
    return reason


def _body(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}
