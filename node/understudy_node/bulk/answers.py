"""The answers of a process for bulk parts, in the pieces in which they come through its pipe.

A piece is passed on as it is. To join a part of 4 MB, or to copy it, takes milliseconds in which no lookup is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

PIPE_BYTES: Final = 128 * 1024
"""Size of the pipe, and so of a piece: a loop passes one on in a tenth of a millisecond."""


class GoneError(Exception):
    """The process has ended in the middle of an answer."""


class Answers(asyncio.Protocol):
    """The reading end of the pipe. One answer is waited for at a time, and no more than that one comes."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self._wanted_bytes = 0
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size_bytes += len(data)
        if self._size_bytes >= self._wanted_bytes:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._wake()

    def close(self) -> None:
        """Close the pipe."""
        if self._transport is not None:
            self._transport.close()

    async def exactly(self, size: int) -> tuple[bytes, ...]:
        """Return the next `size` bytes, in pieces. Raises GoneError when the pipe ends before them."""
        while self._size_bytes < size:
            if self._has_ended:
                raise GoneError("it ended in the middle of an answer")
            self._wanted_bytes, self._waiter = size, asyncio.get_running_loop().create_future()
            await self._waiter
        self._size_bytes -= size
        taken: list[bytes] = []
        while size:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return tuple(taken)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
