"""Flow control of one connection: when reading pauses, and whether the peer reads."""

from __future__ import annotations

from asyncio import Transport

from uvicorn.protocols.http.flow_control import FlowControl


class HeldFlow(FlowControl):
    """Reading pauses for two reasons: uvicorn's, an application that has not read a body yet (`read_paused`), and ours,
    bytes that are `held` because they may not be parsed yet.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.held, self._held_at = b"", 0
        self._unread_bytes, self._unread_since_s = 0, 0.0

    # uvicorn's FlowControl: it calls these two, and reads `read_paused` and `write_paused`

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.release()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_bytes = 0

    # ours

    def hold(self, data: bytes, at: int) -> None:
        """Keep what follows index `at`, and read no more."""
        self.held, self._held_at = data, at
        self._transport.pause_reading()

    def take(self) -> tuple[bytes, int]:
        """What was held, to be parsed; reading stays paused until `release`."""
        data, self.held = self.held, b""
        return data, self._held_at

    def add(self, data: bytes) -> None:
        """Hold more: reading is paused, but a transport may have read already."""
        self.held, self._held_at = self.held[self._held_at :] + data, 0

    def release(self) -> None:
        """Read again, unless one of the reasons is still there."""
        if not (self.held or self.read_paused):
            self._transport.resume_reading()

    def unread_since_s(self, now_s: float) -> float:
        """Since when the peer has read no bytes, as far as one look after another shows it."""
        left_bytes = self._transport.get_write_buffer_size()
        if not self._unread_bytes or left_bytes < self._unread_bytes:
            self._unread_since_s = now_s
        self._unread_bytes = max(1, left_bytes)
        return self._unread_since_s
