"""Lookups through the Python client, blocking and on a loop, by routers and directly, as reads of the history.

A session that carries its position leaves that to a client that reads its own past (`session=True`): what it carried is
the client's position when the read began, and a newer one if another session had an answer meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from tests.system.proof.client_ways import DIRECTLY, WAYS
from tests.system.proof.history import Bounds
from tests.system.proof.http_talk import HOST
from tests.system.proof.question import Question
from tests.system.proof.sessions import Asked, Replied

from understudy import AsyncClient, Client, DeadlineError, ServerProblemError, UnderstudyError
from understudy.client.core.exchange import Failure, Reply, Send
from understudy.client.core.state import Routing
from understudy.client.credentials import Trust
from understudy.client.transports.sockets import SocketTransport
from understudy.client.transports.streams import StreamTransport
from understudy_shared.reads.tokens import decode_position

TIMEOUT_S: Final = 5.0
DEADLINE: Final = "deadline"
"""The problem of a router whose time has passed, and here of a client's."""

MAX_THREADS: Final = 256

_answered_by: ContextVar[int] = ContextVar("the port of the server that answered last in this thread, or task")


class NotingTransport(SocketTransport):
    """The client's own transport, which notes who answered."""

    def exchange(self, send: Send) -> Reply | Failure:
        outcome = super().exchange(send)
        if isinstance(outcome, Reply):
            _answered_by.set(send.endpoint.port)
        return outcome


class AsyncNotingTransport(StreamTransport):
    """The same for a loop."""

    async def exchange(self, send: Send) -> Reply | Failure:
        outcome = await super().exchange(send)
        if isinstance(outcome, Reply):
            _answered_by.set(send.endpoint.port)
        return outcome


class Clients:
    """A client for each way, and one more for those that carry their position; all sessions share them.

    `application` is the one of a fleet that they ask, empty for the only one.
    """

    def __init__(self, routers: Mapping[str, int], application: str = "") -> None:
        self.application = application or None
        self.urls = [f"http://{HOST}:{port}" for port in routers.values()]
        self.threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="client")
        self._names = {port: name for name, port in routers.items()}
        self._sync = {(way, own): self._client(way, own) for way in WAYS if _is_sync(way) for own in (False, True)}
        self._async = {
            (way, own): self._async_client(way, own) for way in WAYS if not _is_sync(way) for own in (False, True)
        }

    def _client(self, way: str, own: bool) -> Client:
        made = NotingTransport(Trust({}, None))
        return Client(self.urls, transport=made, **self._settings(way, own))

    def _async_client(self, way: str, own: bool) -> AsyncClient:
        made = AsyncNotingTransport(Trust({}, None))
        return AsyncClient(self.urls, transport=made, **self._settings(way, own))

    def _settings(self, way: str, own: bool) -> dict[str, Any]:
        routing: Routing = "direct" if way.endswith("direct") else "routers"
        return {"timeout": TIMEOUT_S, "session": own, "routing": routing, "application": self.application}

    async def ask(self, way: str, asked: Asked, question: Question, cursor: str | None, now_ms: Any) -> Replied:
        """Look a key up and return what came of it. `asked` has no position: the client carries it."""
        of = (way, asked.bounds.min_version is not None)
        client: Client | AsyncClient = self._sync[of] if _is_sync(way) else self._async[of]
        asked = replace(asked, bounds=_carried(asked.bounds, client.position))
        named = _named(asked.bounds, question.limit, cursor)
        if isinstance(client, Client):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.threads, self._asked, client, asked, question, named, now_ms)
        try:
            result = await client.store(question.store).get(*question.key, **named)
        except UnderstudyError as error:
            return self._failed(asked, error, now_ms())
        return asked.said(now_ms(), self._server(), 200, result.raw)

    def _asked(self, client: Client, asked: Asked, question: Question, named: Any, now_ms: Any) -> Replied:
        try:
            result = client.store(question.store).get(*question.key, **named)
        except UnderstudyError as error:
            return self._failed(asked, error, now_ms())
        return asked.said(now_ms(), self._server(), 200, result.raw)

    def _failed(self, asked: Asked, error: UnderstudyError, ended_ms: float) -> Replied:
        if isinstance(error, ServerProblemError):
            return asked.refused(ended_ms, self._server(), error.status, error.problem)
        if isinstance(error, DeadlineError):  # its own is shorter than a router's: it gives up where that would refuse
            return asked.refused(ended_ms, self._server(), 504, {"type": DEADLINE, "detail": str(error)})
        return Replied(asked.failed(ended_ms, self._server(), f"{type(error).__name__}: {error}"))

    def _server(self) -> str:
        return self._names.get(_answered_by.get(0), DIRECTLY)

    async def close(self) -> None:
        for client in self._sync.values():
            client.close()
        for each in self._async.values():
            await each.aclose()
        self.threads.shutdown(cancel_futures=True)


def _is_sync(way: str) -> bool:
    return way.startswith("sync")


def _carried(bounds: Bounds, token: str | None) -> Bounds:
    """Return the bounds with the version that the client carries by itself."""
    if bounds.min_version is None:
        return bounds
    return replace(bounds, min_version=None if token is None else decode_position(token).version)


def _named(bounds: Bounds, limit: int | None, cursor: str | None) -> dict[str, Any]:
    """Return bounds by the names of the client."""
    named: dict[str, Any] = {}
    if bounds.max_lag is not None:
        named["max_lag"] = bounds.max_lag
    if bounds.max_staleness_ms is not None:
        named["max_staleness"] = timedelta(milliseconds=bounds.max_staleness_ms)
    if bounds.require_active:
        named["require_active"] = True
    if bounds.unknown_lag is not None:
        named["unknown_lag"] = bounds.unknown_lag
    if bounds.version is not None:
        named |= {"version": bounds.version, "wait": timedelta(milliseconds=bounds.wait_ms)}
    if limit is not None:
        named["limit"] = limit
    return named if cursor is None else {**named, "cursor": cursor}
