"""The service that `understudy.testing` starts: one application in memory, or a fleet of several."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import cast

from fastapi import FastAPI

from understudy_node.in_memory.application import MemoryApplication
from understudy_node.in_memory.checkpoint import Change
from understudy_node.in_memory.connections import MemoryConnection, Received
from understudy_node.in_memory.declared import DeclaredStore
from understudy_node.in_memory.serving import CLOSED, Serving
from understudy_shared.auth.access import Access
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.fleet.dispatching import Fleet, Served
from understudy_shared.fleet.lifespans import Lifespan
from understudy_shared.fleet.own_app import OwnApp, OwnProcess
from understudy_shared.fleet.reporting import Reported
from understudy_shared.http.edge import Receive, Scope, Send
from understudy_shared.server.connection_guard import ConnectionGuard

APPLICATION = "in-memory"

Declared = tuple[Mapping[str, DeclaredStore], Mapping[str, Sequence[Change]]]
"""The stores of an application, and what version 1 has of them."""


class MemoryService:
    """The service. Any thread may call it."""

    def __init__(self, declared: Mapping[str, Declared], *, partitions: int) -> None:
        """Write version 1 of each application, by its id, and serve it. One without a name is served alone.

        Raises UnderstudyError for what does not fit.
        """
        self._lock = threading.Lock()
        self._is_closed = False
        self.applications: dict[str, MemoryApplication] = {}
        guard = ConnectionGuard()
        with ExitStack() as stack:
            for name, (stores, rows) in declared.items():
                application = MemoryApplication(name or APPLICATION, stores, rows, partitions=partitions, guard=guard)
                stack.callback(application.forget)
                self.applications[name] = application
            alone = self.applications.get("")
            self._serving = Serving(_MemoryFleet(self.applications) if alone is None else alone.app, guard)
            stack.callback(self._serving.close)
            for application in self.applications.values():
                stack.callback(application.stop)
                application.wait()
            self._ends = stack.pop_all()

    def close(self) -> None:
        """End the service. Its checkpoints are gone with it."""
        with self._lock:
            self._is_closed = True
        self._ends.close()

    def connect(self, received: Received, lost: Callable[[], None]) -> MemoryConnection:
        """Open a connection in memory. Raises ConnectionRefusedError once the service is closed."""
        return self._serving.connect(received, lost)

    def listen(self, host: str, port: int) -> str:
        """Take connections at a port, too, and return its URL."""
        with self._lock:
            if self._is_closed:
                raise UnderstudyError(CLOSED, fix="Make another one")
            return f"http://{host}:{self._serving.listen(host, port)}"


class _MemoryFleet(Fleet):
    """The application of routes in front of several applications."""

    def __init__(self, applications: Mapping[str, MemoryApplication]) -> None:
        super().__init__(self._answer, Access())
        self._all = applications
        reported = cast(Mapping[str, Reported], applications)  # their applications of routes have troubles in front
        self._answers = OwnApp("serve", reported, OwnProcess(), lifespan=self._lifespan)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answers.app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name, application in self._all.items():
                lifespan = Lifespan(application.app, name)
                await lifespan.start()
                stack.push_async_callback(lifespan.stop)
                self.add(name, cast(Served, application))
            yield
