"""Troubles that a test asks for: problems, slow answers and cut connections, in front of the real application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from understudy_node.http.lookups import NodeLookups
from understudy_shared.http.edge import JSON_TYPE, Receive, Scope, Send, send_problem
from understudy_shared.http.problems import Problem, ProblemError
from understudy_shared.http.target import application_target, split_path
from understudy_shared.server.direct import Exchange

API = "/v1/"


@dataclass(slots=True, eq=False)
class Trouble:
    """A fault that requests of the API meet: a delay first, then an end other than the answer, if there is one.

    `store` limits it to the calls of one store, `times` to so many requests.
    """

    delay_s: float = 0.0
    problem: Problem | None = None
    is_cut: bool = False
    store: str | None = None
    times: int | None = None

    def meets(self, path: list[str]) -> bool:
        """Whether it happens to a request of this path, which counts then."""
        if self.times == 0 or (self.store is not None and path[1:3] != ["stores", self.store]):
            return False
        self.times = None if self.times is None else self.times - 1
        return True


class TroubledApp:
    """The application of a node, with troubles. Without any it answers as it does alone."""

    def __init__(self, app: NodeLookups, has_store: Callable[[str], bool]) -> None:
        self.access = app.access
        self.has_store = has_store
        self._app = app
        self._troubles: tuple[Trouble, ...] = ()
        self._ended = asyncio.Event()

    def begin(self, trouble: Trouble) -> None:
        """Let a trouble happen from now on. Called from any thread."""
        self._troubles = (*self._troubles, trouble)

    def end(self, trouble: Trouble) -> None:
        """Let a trouble happen no more. Called from any thread."""
        self._troubles = tuple(each for each in self._troubles if each is not trouble)

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        """Answer as the application does; requests that may meet a trouble come by ASGI."""
        return not self._troubles and self._app.answer_directly(target, exchange)

    async def end_streams(self) -> None:
        """End streams, and delays, in good order: the service stops."""
        self._ended.set()
        await self._app.end_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for trouble in self._met(scope):
            await self._delay(trouble.delay_s)
            if trouble.is_cut:
                await _cut(send)
                return
            if trouble.problem is not None:
                await send_problem(send, trouble.problem)
                return
        await self._app(scope, receive, send)

    async def _delay(self, seconds: float) -> None:
        """Wait, but no longer than the service runs."""
        if seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), seconds)

    def _met(self, scope: Scope) -> list[Trouble]:
        if not self._troubles or scope["type"] != "http" or not scope["path"].startswith(API):
            return []
        try:
            path = split_path(application_target(scope["raw_path"])[1])
        except ProblemError:  # the application refuses such a path
            return []
        return [trouble for trouble in self._troubles if trouble.meets(path)]


async def _cut(send: Send) -> None:
    """Begin an answer that does not end, so that the protocol closes the connection."""
    head = [(b"content-type", JSON_TYPE), (b"content-length", b"1")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
