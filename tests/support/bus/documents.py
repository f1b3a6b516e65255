"""Documents, listeners and waiting for tests of the bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar, cast

from understudy_shared.bus.base import Back, Lost
from understudy_shared.bus.gossip import sealed
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Heartbeat, Message, NodeEndpoint
from understudy_shared.bus.redis_bus import RedisBus

APPLICATION = "flights"
LIMIT_S = 60.0
"""What is waited for takes well under a second; a loaded machine gets its time."""

T = TypeVar("T")


def heartbeat(node_id: str = "n1", *, incarnation: str = "i1", sequence: int = 1, **fields: Any) -> Heartbeat:
    """One node of `flights` that serves in step."""
    values: dict[str, Any] = {
        "application_id": APPLICATION,
        "node_id": node_id,
        "incarnation": incarnation,
        "sequence": sequence,
        "endpoint": NodeEndpoint(host="127.0.0.1", port=7101),
        "state": "serving",
        "heartbeat_ms": 20_000,
        "lineage": "l1",
        "end_version": 7,
        "end_age_ms": 3,
        "applied": Applied(version=7),
        "term": 1,
        "epoch": 1,
        **fields,
    }
    return Heartbeat(**values)


def assignment(*, term: int, epoch: int) -> Assignment:
    """One task of `flights`, held by n1."""
    return Assignment(
        application_id=APPLICATION,
        term=term,
        epoch=epoch,
        written_by="n1",
        lineage="l1",
        partitions=1,
        tasks={"0_0": AssignedTask(active="n1")},
    )


def enveloped(message: Message) -> bytes:
    """The bytes of an unsigned document on the bus."""
    return sealed(MessageAuth(message.application_id), message)


async def eventually(condition: Callable[[], Awaitable[object]], *, what: str) -> None:
    """Return when `condition` holds; fail after a limit."""
    end_s = time.monotonic() + LIMIT_S
    while not await condition():
        assert time.monotonic() < end_s, f"waited {LIMIT_S:g} s in vain for {what}"
        await asyncio.sleep(0.005)


class Ear(Generic[T]):
    """A subscription that a test reads message by message."""

    def __init__(self, heard: AsyncIterator[T]) -> None:
        self._heard = heard

    async def next(self) -> T:
        """The next thing heard; fails when nothing comes."""
        async with asyncio.timeout(LIMIT_S):
            return await anext(self._heard)

    async def until(self, kind: type[Lost] | type[Back]) -> list[T]:
        """All that is heard up to the next Lost or Back, with it."""
        heard = [await self.next()]
        while not isinstance(heard[-1], kind):
            heard.append(await self.next())
        return heard


@asynccontextmanager
async def bus_of(url: str, *, call_ms: int = 2000) -> AsyncIterator[RedisBus]:
    """A bus over a Redis until the block ends. By default a call ends after a time that a test can wait for."""
    bus = RedisBus(url, call_timeout_ms=call_ms)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def listening(heard: AsyncIterator[T], *, stands: bool = True) -> AsyncIterator[Ear[T]]:
    """Read `heard` until the end of the block, from the moment that the subscription stands."""
    ear = Ear(heard)
    try:
        if stands:
            assert isinstance(await ear.next(), Back)
        yield ear
    finally:
        await cast(AsyncGenerator[T, None], heard).aclose()
