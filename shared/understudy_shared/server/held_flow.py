"""Flow control of one connection: when reading pauses, and whether the peer reads its answers."""

from __future__ import annotations

from asyncio import Transport

from uvicorn.protocols.http.flow_control import FlowControl


class HeldFlow(FlowControl):
    """The flow control of one connection. Reading pauses for two reasons: an application has not read a body yet
    (`read_paused`, from uvicorn), or bytes are `held` here because they may not be parsed yet.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.held, self._held_at = b"", 0
        self._unread_bytes, self._unread_since_s = 0, 0.0

    # uvicorn: its protocol calls the next two methods, and reads `read_paused` and `write_paused`

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.release()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_bytes = 0

    # not of uvicorn

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
