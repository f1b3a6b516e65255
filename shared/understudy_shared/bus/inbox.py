"""The unread messages of a subscription: bounded in number and bytes, one reader, no I/O.

A reader that is too slow loses messages: all waiting messages are dropped, and `Lost` and `Back` replace them.
After that `Back` the reader reads the keys again, as after any other loss.
"""

from __future__ import annotations

import asyncio
from collections import deque

from understudy_shared.bus.base import Back, Lost

MAX_MESSAGES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Limit on the waiting bytes: sixteen messages of the largest size; an ordinary heartbeat has less than 1 kB."""

Heard = bytes | Lost | Back


class Inbox:
    """Messages in the order of arrival."""

    def __init__(self, *, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[Heard] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._end: BaseException | None = None
        self._ended = False

    def put(self, heard: Heard) -> None:
        """Store a message for the reader. Without room, drop all waiting messages and give the reader `Lost`. After the
        end nothing is stored.
        """
        if self._ended:
            return
        self._waiting.append(heard)
        self._bytes += _size(heard)
        if len(self._waiting) > self._max_messages or self._bytes > self._max_bytes:
            self._overflow(heard)
        self._arrived.set()

    def end(self, error: BaseException | None = None) -> None:
        """End the inbox: after the waiting messages the reader gets `error`, if there is one."""
        self._ended = True
        self._end = self._end or error
        self._arrived.set()

    async def take(self) -> Heard | None:
        """Wait for the next message; None after the end."""
        while not self._waiting:
            if self._end is not None:
                raise self._end
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        heard = self._waiting.popleft()
        self._bytes -= _size(heard)
        return heard

    def _overflow(self, last: Heard) -> None:
        why = f"more than {self._max_messages} messages or {self._max_bytes} bytes waited: the reader is too slow"
        self._waiting.clear()
        self._bytes = 0
        self._waiting.append(Lost(why))
        if not isinstance(last, Lost):
            self._waiting.append(Back())


def _size(heard: Heard) -> int:
    return len(heard) if isinstance(heard, bytes) else 0
