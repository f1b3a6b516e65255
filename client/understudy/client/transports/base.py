"""The seam to the network: a transport carries a request to a server, and brings its reply, or the reason."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Protocol

from understudy.client.core.exchange import Failure, FailureKind, Opened, Reply, Send

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""Largest body of a reply, in bytes: the largest batch that servers give has half of it."""


LATE = Failure(FailureKind.TIMEOUT, "nothing came in time")
CLOSED = Failure(FailureKind.CUT, "the stream was closed")


class Stream(Protocol):
    """The body of a reply as it comes. One thread reads it; any may close it."""

    def receive(self, deadline_s: float) -> bytes | Failure:
        """Return what came, empty bytes at the whole end, or the reason without either, by a deadline."""

    def close(self) -> None:
        """Close the connection at once. Who waits for more gets a failure."""


class BlockingStream(ABC):
    """A stream over a socket. While a thread reads it, that thread frees the descriptor, also when another one closes
    the stream: the reader may be about to wait for it, and would wait for whatever gets the same number next.
    """

    # Each side sets its own flag before it looks at the other's, so that one of them, at least, frees it.
    _is_read = False
    _is_closed = False

    def receive(self, deadline_s: float) -> bytes | Failure:
        """See `Stream`."""
        self._is_read = True
        try:
            return CLOSED if self._is_closed else self._next(deadline_s)
        finally:
            self._is_read = False
            if self._is_closed:
                self._free()

    def close(self) -> None:
        """See `Stream`."""
        self._is_closed = True
        found = self._socket()
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for more
        if not self._is_read:
            self._free()

    @abstractmethod
    def _next(self, deadline_s: float) -> bytes | Failure: ...

    @abstractmethod
    def _socket(self) -> socket.socket | None: ...

    @abstractmethod
    def _free(self) -> None: ...


class AsyncStream(Protocol):
    """The same for an event loop. One task reads it."""

    async def receive(self, deadline_s: float) -> bytes | Failure:
        """Return what came, empty bytes at the whole end, or the reason without either, by a deadline."""

    def close(self) -> None:
        """Close the connection at once, without waiting; at the end of its loop, too."""


class Transport(Protocol):
    """A carrier that blocks. Threads share it."""

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply by its deadline: with status 200 its head, and a `Stream` of the rest."""

    def close(self) -> None:
        """Close all connections. A later exchange opens new ones."""


class AsyncTransport(Protocol):
    """A carrier for an event loop. Tasks share it."""

    async def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""

    async def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply by its deadline: with status 200 its head, and an `AsyncStream`."""

    async def aclose(self) -> None:
        """Close all connections. A later exchange opens new ones."""
