"""Connections in memory: the server's protocol gets its bytes, and writes its own, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

Received = Callable[[bytes], None]
"""A function that takes bytes of the server; called on the server's loop."""


class MemoryConnection(asyncio.Transport):
    """A connection. `send` and `hang_up` are the client's, from any thread; all else is the server's, on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, received: Received, lost: Callable[[], None]) -> None:
        """Prepare it for `open_to`. `lost` is called once, when the server has closed it."""
        super().__init__()
        self._loop = loop
        self._received, self._on_lost = received, lost
        self._protocol: asyncio.Protocol | None = None
        self._has_left = self._is_closing = self._is_paused = False
        self._held: list[bytes] = []

    def __repr__(self) -> str:
        return f"MemoryConnection({'closing' if self._is_closing else 'open'})"

    def open_to(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Connect the server's protocol, on its loop."""
        self._protocol = new_protocol()
        self._protocol.connection_made(self)

    # ---- the client's end

    def send(self, data: bytes) -> None:
        """Send bytes to the server."""
        self._call(self._deliver, data)

    def hang_up(self) -> None:
        """Close the connection; from now on nothing is received."""
        self._has_left = True
        self._call(self.close)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop has ended
            self._lose()

    # ---- the server's end, as asyncio defines it

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not (self._is_closing or self._has_left):
            with suppress(RuntimeError):  # the client's loop has ended
                self._received(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._lose)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._deliver, b"")

    def is_reading(self) -> bool:
        return not (self._is_paused or self._is_closing)

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0  # the client takes all at once

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def _deliver(self, data: bytes) -> None:
        self._held += [data] if data else []
        while self._held and self._protocol is not None and self.is_reading():
            self._protocol.data_received(self._held.pop(0))

    def _lose(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(None)
        lost, self._on_lost = self._on_lost, _ignore
        with suppress(RuntimeError):
            lost()


def _ignore() -> None:
    """Do nothing: the end was reported before."""
