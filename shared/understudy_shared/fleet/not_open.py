"""Answers for an application that is not open: it is known, and says why it cannot answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from understudy_shared.auth.access import Access, authorization_of
from understudy_shared.auth.shown import shown_problem
from understudy_shared.http.edge import Receive, Scope, Send, send_problem, without_body
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.server.batches import Batch
from understudy_shared.server.direct import Exchange, reply_problem
from understudy_shared.server.lookups import LookupsFirst
from understudy_shared.server.request_counts import RequestCounts

_FIX = "Retry; GET /v1/applications/{application} says when it is served"


class NotOpen(LookupsFirst):
    """The application in the place of one that is not open. `why` says the reason in words."""

    def __init__(self, application_id: str, why: Callable[[], str], access: Access) -> None:
        super().__init__(self._refuse_all, max_in_flight=1, requests=RequestCounts(), access=access)
        self.application_id = application_id
        self._why = why

    def answer(self, target: bytes, exchange: Exchange) -> None:
        self.reply_problem(exchange, self._problem())

    async def look_up_many(self, batch: Batch) -> NoReturn:
        raise ProblemError(self._problem())

    def has_store(self, store: str) -> bool:
        return False

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        """Accept nothing: an application that is open says for all what is answered without ASGI."""
        return False

    def answer_body(self, body: bytes, exchange: Exchange) -> None:
        reply_problem(exchange, self._problem())

    async def _refuse_all(self, scope: Scope, _receive: Receive, send: Send) -> None:
        shown = shown_problem(authorization_of(scope).principal, self._problem())
        await send_problem(without_body(send) if scope["method"] == "HEAD" else send, shown)

    def _problem(self) -> Problem:
        return Problem(ProblemType.NOT_INITIALISED, self._why(), "path", _FIX)
