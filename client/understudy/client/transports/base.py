"""The seam to the network: a transport carries a request to a server, and brings its reply, or the reason."""

from __future__ import annotations

from typing import Protocol

from understudy.client.core.exchange import Failure, FailureKind, Opened, Reply, Send

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""Largest body of a reply, in bytes: the largest batch that servers give has half of it."""


LATE = Failure(FailureKind.TIMEOUT, "nothing came in time")


class Stream(Protocol):
    """The body of a reply as it comes. One thread reads it; any may close it."""

    def receive(self, deadline_s: float) -> bytes | Failure:
        """Return what came, empty bytes at the whole end, or the reason without either, by a deadline."""

    def close(self) -> None:
        """Close the connection at once. Who waits for more gets a failure."""


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
