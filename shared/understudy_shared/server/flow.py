"""Flow control of one connection: when reading and writing pause, and whether the peer reads its answers."""

from __future__ import annotations

import asyncio


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
