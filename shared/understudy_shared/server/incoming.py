"""The reading side of one connection: how much of a request has arrived, up to where its bytes may be parsed next, and
when reading and writing pause.
"""

from __future__ import annotations

import asyncio

import httptools

from understudy_shared.server.connection_limits import MAX_HEAD_BYTES, MAX_HEADER_BYTES, SLICE_BYTES, ConnectionRefusal


class Flow:
    """The flow control of one connection.

    Reading pauses for two reasons: an application has not read a body yet (`read_paused`), or bytes are `held` here
    because they may not be parsed yet. Writing pauses while the peer does not read (`write_paused`).
    """

    __slots__ = (
        "_held_at", "_transport", "_unread_bytes", "_unread_since_s", "_writable", "held", "read_paused",
        "write_paused",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self.held, self._held_at = b"", 0
        self._unread_bytes, self._unread_since_s = 0, 0.0

    async def drain(self) -> None:
        """Return when the peer has read enough."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._unread_bytes = 0
        self._writable.set()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.release()

    def hold(self, data: bytes, at: int) -> None:
        """Hold the bytes from index `at` on, and pause reading."""
        self.held, self._held_at = data, at
        self._transport.pause_reading()

    def take(self) -> tuple[bytes, int]:
        """Return the held bytes and the index to parse them from; reading stays paused until `release`."""
        data, self.held = self.held, b""
        return data, self._held_at

    def add(self, data: bytes) -> None:
        """Hold more: reading is paused, but the transport may have read more before it paused."""
        self.held, self._held_at = self.held[self._held_at :] + data, 0

    def release(self) -> None:
        """Resume reading, unless one of the reasons to pause still holds."""
        if not (self.held or self.read_paused):
            self._transport.resume_reading()

    def unread_since_s(self, now_s: float) -> float:
        """Return the time since which the peer has read no bytes, as far as repeated calls show it."""
        left_bytes = self._transport.get_write_buffer_size()
        if not self._unread_bytes or left_bytes < self._unread_bytes:
            self._unread_since_s = now_s
        self._unread_bytes = max(1, left_bytes)
        return self._unread_since_s


END_OF_HEAD = b"\r\n\r\n"
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class RefusedError(Exception):
    """An error that a callback of the parser raises, with the Refusal, to end the parsing."""


class Incoming:
    """The state of the request that a connection is reading, or read last."""

    __slots__ = (
        "_tail", "began_s", "body_bytes", "left_bytes", "quiet_bytes", "read_s", "received", "surplus_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._tail = b""
        """The last bytes that were parsed: a read may end within the blank line that ends a head."""
        self.received = bytearray()
        """The body, where it is answered directly. As a list, pieces of two bytes would take twenty times the memory.
        """
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        self.began_s = self.read_s = now_s
        self.quiet_bytes = 0
        """Bytes parsed of this head, or since the last bytes of this body. The count may be one slice too high."""
        self.left_bytes = 0
        """Bytes of this body that are still to come; 0 if only the end of the body shows its length."""
        self.body_bytes = self.surplus_bytes = 0

    def slice_end(self, data: bytes, at: int) -> int:
        """Return the index up to which to parse: at most the end of this request, so that no later one begins there."""
        end = min(len(data), at + SLICE_BYTES)
        if self.left_bytes:
            return min(end, at + self.left_bytes)
        tail = self._tail
        found = (tail + data[at : at + 3]).find(END_OF_HEAD) if tail else -1
        if found >= 0:
            end = at + found + 4 - len(tail)
        else:
            found = data.find(END_OF_HEAD, at, end)
            end = found + 4 if found >= 0 else end
        self._tail = (tail + data[max(at, end - 3) : end])[-3:]
        return end

    @staticmethod
    def feed(parser: httptools.HttpRequestParser, data: bytes | memoryview) -> ConnectionRefusal | None:
        """Parse the bytes; the parser calls the protocol back. Return why they are refused, if they are."""
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the upgrade is ignored: the answer is HTTP/1.1
        except httptools.HttpParserError as error:
            cause = error.__context__
            return cause.args[0] if isinstance(cause, RefusedError) else ConnectionRefusal.MALFORMED
        return None

    def head_ends(self, headers: list[tuple[bytes, bytes]], version: str) -> bool:
        """End the head: a body may follow. Return whether the head announces one. Raises RefusedError."""
        # A head that came in one slice is below the limit, so it is not measured.
        if self.quiet_bytes and sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
            raise RefusedError(ConnectionRefusal.HEADER_SIZE)
        hosts = [name for name, _ in headers].count(b"host")
        if hosts > 1 or (not hosts and version == "1.1"):  # RFC 9112, 3.2
            raise RefusedError(ConnectionRefusal.HOST)
        self.quiet_bytes = 0
        self.read_s = self.began_s
        sizes = [header for header in headers if header[0] in _BODY_HEADERS]
        # With chunks, or with several of these headers, only the parser knows where the body ends.
        if len(sizes) == 1 and sizes[0][0] == b"content-length":
            self.left_bytes = int(sizes[0][1])  # the parser has accepted it
        return bool(sizes)

    def body_comes(self, size_bytes: int, now_s: float) -> None:
        self.quiet_bytes = 0
        self.body_bytes += size_bytes
        self.left_bytes -= min(size_bytes, self.left_bytes)
        self.read_s = now_s

    def is_too_long(self, parsed_bytes: int) -> bool:
        """Whether a head, or the bytes between the pieces of a body, exceed their limit with so many more bytes."""
        self.quiet_bytes += parsed_bytes
        return self.quiet_bytes > MAX_HEAD_BYTES + SLICE_BYTES
