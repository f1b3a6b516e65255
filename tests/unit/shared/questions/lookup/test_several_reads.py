"""A read of several stores ends: with its time, and with its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.questions import several as several_reads
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.several import SeveralStores
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.reads.tokens import Position
from understudy_shared.server.direct import Exchange, ReaderLeftError
from understudy_shared.telemetry.metrics import RequestCounts

BODY = b'{"reads": [{"store": "words", "keys": [["a"]]}]}'


class Lookups(LookupsFirst):
    """Lookups of a batch that do as they are told."""

    def __init__(self, look_up: Callable[[], Awaitable[bytes]]) -> None:
        async def no_application(*_: Any) -> None:
            """Answer nothing."""

        super().__init__(no_application, max_in_flight=1, requests=RequestCounts())
        self._look_up = look_up

    async def look_up_many(self, *_: Any, **__: Any) -> bytes:
        return await self._look_up()

    def answer(self, target: bytes, exchange: Exchange) -> None:
        raise NotImplementedError

    def has_store(self, store: str) -> bool:
        return True


class Service:
    """A service without bounds."""

    requests = RequestCounts()
    max_key_bytes = 100

    def has_store(self, _name: str) -> bool:
        return True

    def bound_of(self, _store: str, _params: Mapping[str, object]) -> Bound:
        return NO_BOUND


async def position(_store: str, _bound: Bound) -> Position:
    return Position(ApplicationId("app"), Lineage("line"), 7, None)


async def never() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def left() -> bytes:
    raise ReaderLeftError


async def nothing_received() -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("look_up", "outcome", "problem"),
    [(never, "deadline", ProblemType.DEADLINE), (left, "cancelled", ProblemType.BAD_REQUEST)],
)
async def test_it_ends_with_a_problem_and_is_no_longer_in_flight(
    look_up: Callable[[], Awaitable[bytes]],
    outcome: str,
    problem: ProblemType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(several_reads, "SEVERAL_S", 0.01)
    lookups = Lookups(look_up)
    with pytest.raises(ProblemError) as refused:
        await SeveralStores(lookups, Service(), position).answer(BODY, {"type": "http"}, nothing_received)
    assert refused.value.problem.type is problem
    assert lookups.requests.outcomes == {("read", "", outcome): 1}
    assert lookups.in_flight == 0
