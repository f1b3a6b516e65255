"""The application of a node on a loop in a thread of its own, with connections in memory, and a port when one is asked
for.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

from understudy_node.in_memory.connections import MemoryConnection, Received
from understudy_node.in_memory.troubles import TroubledApp
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.fleet.dispatching import Fleet
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.service import NOT_STARTED, Service, bound_socket

CLOSED = "the server in memory is closed"

LAST_ANSWERS_S = 5.0
"""Longest time in seconds for the answers that are being made at the end."""

LIMIT_S = 30.0
"""Longest time in seconds for the start, the end, and the opening of a port."""


class _QuietService(Service):
    """A service that ends by `finish`, at once: those who ask it are in this process.

    uvicorn: `servers`, `server_state`, `lifespan` and the arguments of its protocols are its internals.
    """

    def __init__(self, app: TroubledApp | Fleet, guard: ConnectionGuard, listening: Callable[[], None]) -> None:
        super().__init__(app, guard=guard, listening=listening)
        self._app = app
        self._finished = asyncio.Event()

    def new_protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn makes it."""
        new: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return new(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def listen(self, host: str, port: int) -> int:
        """Take connections at a port, too, and return it. Raises UnderstudyError for one that cannot be had."""
        listener = bound_socket(host, port)
        found: int = listener.getsockname()[1]
        self.servers.append(await asyncio.get_running_loop().create_server(self.new_protocol, sock=listener))
        return found

    def finish(self) -> None:
        """End the service, on its loop."""
        self._finished.set()

    async def main_loop(self) -> None:
        await self._finished.wait()
        await self._app.end_streams()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=LAST_ANSWERS_S)
        await self.lifespan.shutdown()
        self._guard.stop()
        self._access.stop()


class Serving:
    """A running service. `close` ends it."""

    def __init__(self, app: TroubledApp | Fleet, guard: ConnectionGuard) -> None:
        """Start it. Raises UnderstudyError when it does not start; the log says why then."""
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service = _QuietService(app, guard, self._listening)
        self._thread = threading.Thread(target=self._run, name="understudy in memory", daemon=True)
        self._thread.start()
        if not self._begun.wait(LIMIT_S) or self._loop is None:
            raise UnderstudyError(NOT_STARTED, fix="The log says why")

    def _listening(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()

    def _run(self) -> None:
        try:
            self._service.run(sockets=[])
        finally:
            self._begun.set()

    @property
    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or not self._thread.is_alive():
            raise ConnectionRefusedError(CLOSED)
        return self._loop

    def connect(self, received: Received, lost: Callable[[], None]) -> MemoryConnection:
        """Open a connection. Raises ConnectionRefusedError once the service is closed."""
        loop = self._running
        connection = MemoryConnection(loop, received, lost)
        try:
            loop.call_soon_threadsafe(connection.open_to, self._service.new_protocol)
        except RuntimeError:  # the loop ended a moment ago
            raise ConnectionRefusedError(CLOSED) from None
        return connection

    def listen(self, host: str, port: int) -> int:
        """Take connections at a port, too, and return it. Raises UnderstudyError for one that cannot be had."""
        return asyncio.run_coroutine_threadsafe(self._service.listen(host, port), self._running).result(LIMIT_S)

    def close(self) -> None:
        """End the service, and what it serves."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._service.finish)
            self._thread.join(LIMIT_S)
