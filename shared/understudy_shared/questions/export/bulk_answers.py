"""Streams of many rows: status and headers come with the first of them, and what is sent says how it ended.

Rule: what cannot begin is a problem document. What cannot go on ends with a record of its error, without the record of
its end, and with a broken connection.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

from fastapi import Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.principals import Authorization
from understudy_shared.auth.redaction import shown_problem
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import Receive, Scope, Send, bug
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.questions.scan.turns import Asker
from understudy_shared.server.connection_limits import ENDLESS

PIECE_BYTES: Final = 256 * 1024
"""Number of bytes that are given to the connection at a time: it takes the next when the reader has read."""

SendMessage = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger(__name__)


class BulkResponse(Response, ABC):
    """The answer to a request for many rows. It reads no faster than its reader, and ends when he leaves. `noun` and
    `action` name it in the log.
    """

    noun: str
    action: str

    @abstractmethod
    async def answer(self, scope: Scope, authorization: Authorization, send: SendMessage, asker: Asker) -> None:
        """Send the answer. Raises the problem of one that cannot begin, or go on."""

    @abstractmethod
    async def broken_off(self, problem: Problem) -> bytes:
        """Return what stands in place of the end of a stream that has begun, and cannot go on."""

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
    """Return the status and the headers of a stream."""
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
    """Return a piece of the body."""
    return {"type": "http.response.body", "body": body, "more_body": more}
