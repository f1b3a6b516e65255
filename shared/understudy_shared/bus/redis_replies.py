"""Parsers of Redis replies with limits: redis-py's own in Python, which allocate only what has arrived.

hiredis allocates what a header announces: 13 bytes (`*2147483647`) held the event loop for seconds. `ReplyBudget` is
pure. It sees each header line before redis-py acts on it, so it judges lengths before anything is allocated or read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from redis._parsers import _AsyncRESP2Parser, _RESP2Parser
from redis._parsers.socket import SERVER_CLOSED_CONNECTION_ERROR, SocketBuffer
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.utils import SENTINEL

from understudy_shared.bus.base import MAX_SCANNED_BYTES
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES

MAX_REPLY_BYTES = 2 * MAX_MESSAGE_BYTES
"""Limit on a reply: twice the longest document, so that a document that is a little too long gets its own error."""

MAX_ELEMENTS = 65_536
"""Limit on the elements of a reply, nested ones included. The longest expected reply names about 1,000 keys."""

MAX_DEPTH = 8
MAX_LINE_BYTES = 65_536
"""Limit on a header, error or status line."""

MAX_CALL_BYTES = MAX_SCANNED_BYTES + MAX_REPLY_BYTES
"""Limit on the bytes of all replies of one call: a pipeline reads a thousand."""

OTHER_SHAPE = (TypeError, ValueError, LookupError, AttributeError)
"""Exceptions that redis-py and its callers raise for a reply of another shape than its command's."""

_PUBLISHED = re.compile(rb"\*3\r\n\$7\r\nmessage\r\n\$([0-9]{1,4})\r\n")
_LENGTH = re.compile(rb"\r\n\$([0-9]{1,7})\r\n")
_SHOWN_BYTES = 40
_TEXTS = (b"+", b"-")
_MAX_DIGITS = 20

_left_in_call: ContextVar[list[int] | None] = ContextVar("left_in_call", default=None)
"""The bytes that replies of the current call may still have."""


class BadRedisReplyError(RedisConnectionError):
    """A server sent bytes that are no reply of a Redis, or a reply above a limit. redis-py closes the connection."""


class ReplyBudget:
    """The limits of one reply, checked by its header lines: types, lengths, elements and depth."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._elements = 0
        self._open: list[int] = []
        """The elements that each open array still lacks, outermost first."""

    def take(self, line: bytes) -> None:
        """Count a line without its end, and what it announces. Raises BadReplyError."""
        kind, text = line[:1], line[1:]
        elements = 0
        size = len(line) + 2
        if kind == b"$":
            size += max(0, _length(line, text)) + 2
        elif kind == b"*":
            elements = max(0, _length(line, text))
        elif kind == b":":
            _number(line, text)
        elif kind not in _TEXTS:
            raise BadRedisReplyError(f"it sent {_shown(line)}, which begins no reply of RESP2")
        elif size > MAX_LINE_BYTES:
            raise BadRedisReplyError(f"it sent a line of {size} bytes, above {MAX_LINE_BYTES}")
        self.used_bytes += size
        if self.used_bytes > MAX_REPLY_BYTES:
            raise BadRedisReplyError(
                f"it sent {_shown(line)}: a reply of {self.used_bytes} bytes, above {MAX_REPLY_BYTES}"
            )
        if self._open or elements:
            self._nest(line, elements)

    def _nest(self, line: bytes, elements: int) -> None:
        lacking = self._open
        if lacking:
            lacking[-1] -= 1
        if elements:
            self._elements += elements
            if self._elements > MAX_ELEMENTS:
                text = f"it sent {_shown(line)}: a reply of {self._elements} elements, above {MAX_ELEMENTS}"
                raise BadRedisReplyError(text)
            lacking.append(elements)
            if len(lacking) > MAX_DEPTH:
                raise BadRedisReplyError(f"it sent arrays within arrays, more than {MAX_DEPTH} deep")
        # The last element of an array may be the last one of those around it, too.
        while lacking and not lacking[-1]:
            lacking.pop()


@contextmanager
def bounded_call(max_bytes: int = MAX_CALL_BYTES) -> Iterator[None]:
    """Bound all replies that are read in this context together."""
    token = _left_in_call.set([max_bytes])
    try:
        yield
    finally:
        _left_in_call.reset(token)


class BoundedParser(_AsyncRESP2Parser):
    """The parser of a connection for tasks. It takes all bytes that have arrived from the stream: redis-py's parser
    awaits the stream for each line, which makes a message cost four times as much.
    """

    @property
    def has_more(self) -> bool:
        """Whether anything was taken from the stream and not read yet."""
        return bool(self._buffer)

    async def read_response(self, disable_decoding: bool = False) -> Any:
        """Read one reply, within its limits. After a cancelled read it starts again with what has arrived."""
        if not self._connected:
            raise RedisConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
        if not self._buffer:
            await self._take()
        if (message := self._published()) is not None:
            return message
        # The buffer is cut only after a whole reply: what a cancelled read had taken is still there for the next one.
        self._budget = ReplyBudget()
        self._pos = 0
        reply = await self._read_response(disable_decoding=disable_decoding)
        del self._buffer[: self._pos]
        _spend(self._budget.used_bytes)
        return reply

    def _published(self) -> list[bytes] | None:
        """Take a message of a channel off what has arrived, if it is whole and within the limits. Most replies are one,
        a thousand a second in a large cluster; this takes a fifth of the time of the general way.
        """
        arrived = self._buffer
        head = _PUBLISHED.match(arrived)
        body = None if head is None else _LENGTH.match(arrived, head.end() + int(head[1]))
        if head is None or body is None:
            return None
        end = body.end() + int(body[1])
        if len(arrived) < end + 2 or end > MAX_REPLY_BYTES:
            return None
        found = [b"message", bytes(arrived[head.end() : body.start()]), bytes(arrived[body.end() : end])]
        del arrived[: end + 2]
        _spend(end + 2)
        return found

    def _clear(self) -> None:
        self._buffer: Any = bytearray()

    async def _read(self, length: int) -> bytes:
        end = self._pos + length
        while len(self._buffer) < end + 2:
            await self._take()
        found = bytes(self._buffer[self._pos : end])
        self._pos = end + 2
        return found

    async def _readline(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._pos)) < 0:
            if len(self._buffer) - self._pos > MAX_LINE_BYTES:
                raise BadRedisReplyError(f"it sent a line of more than {MAX_LINE_BYTES} bytes")
            await self._take()
        line = bytes(self._buffer[self._pos : end])
        self._pos = end + 2
        self._budget.take(line)
        return line

    async def _take(self) -> None:
        assert self._stream is not None  # of a connection that is open
        arrived = await self._stream.read(MAX_LINE_BYTES)
        if not arrived:
            raise RedisConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
        self._buffer += arrived


class BoundedThreadParser(_RESP2Parser):
    """The parser of a connection for one thread."""

    def on_connect(self, connection: Any) -> None:
        """Read from the socket of a connection that was just opened."""
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        sock: Any = self._sock
        self._buffer: Any = _BoundedBuffer(sock, self.socket_read_size, connection.socket_timeout)

    def read_response(self, disable_decoding: bool = False, timeout: Any = SENTINEL) -> Any:
        """Read one reply, within its limits."""
        if self._buffer is not None:
            self._buffer.budget = ReplyBudget()
        return super().read_response(disable_decoding, timeout)


class _BoundedBuffer(SocketBuffer):
    """A buffer as redis-py's, with a limit on its lines."""

    budget: ReplyBudget

    def readline(self, timeout: Any = SENTINEL) -> bytes:
        """Read the next line without its end."""
        line = self._buffer.readline()
        while not line.endswith(b"\r\n"):
            if len(line) > MAX_LINE_BYTES:
                raise BadRedisReplyError(f"it sent a line of more than {MAX_LINE_BYTES} bytes")
            self._read_from_socket(timeout=timeout)
            line += self._buffer.readline()
        self.budget.take(line[:-2])
        return line[:-2]


def _spend(used_bytes: int) -> None:
    left = _left_in_call.get()
    if left is not None:
        left[0] -= used_bytes
        if left[0] < 0:
            raise BadRedisReplyError("its replies to one call are longer than any that were asked for")


def _length(line: bytes, text: bytes) -> int:
    number = _number(line, text)
    if number < -1:
        raise BadRedisReplyError(f"it sent {_shown(line)}, a negative length")
    return number


def _number(line: bytes, text: bytes) -> int:
    if len(text) > _MAX_DIGITS or not (text.isdigit() or (text[1:].isdigit() and text[:1] in (b"-", b"+"))):
        raise BadRedisReplyError(f"it sent {_shown(line)}, where a number belongs")
    return int(text)


def _shown(line: bytes) -> str:
    """Print the beginning of a line for an error: ASCII alone, and short."""
    return repr(line[:_SHOWN_BYTES])[1:] + ("..." if len(line) > _SHOWN_BYTES else "")
