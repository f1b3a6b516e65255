"""The seam to the network: a transport carries a request to a server, and brings its reply, or the reason."""

from __future__ import annotations

from typing import Protocol

from understudy.client.core.exchange import Failure, Reply, Send

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""Largest body of a reply, in bytes: the largest batch that servers give has half of it."""


class Transport(Protocol):
    """A carrier that blocks. Threads share it."""

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""

    def close(self) -> None:
        """Close all connections. A later exchange opens new ones."""


class AsyncTransport(Protocol):
    """A carrier for an event loop. Tasks share it."""

    async def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""

    async def aclose(self) -> None:
        """Close all connections. A later exchange opens new ones."""
