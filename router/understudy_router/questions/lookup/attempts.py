"""The attempts of a read, and the events that it waits for: replies, the time to plan again, and a reader who
leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from understudy_router.cluster.candidates import Candidate
from understudy_router.transport.node_client import NodeClient
from understudy_router.transport.node_requests import NodeRequest, Reply
from understudy_shared.questions.lookup.hop_columns import HopKeys
from understudy_shared.server.direct import ReaderLeftError
from understudy_shared.telemetry.spans import Trace


class Reader(Protocol):
    """The reader that waits for the results; an `Exchange` is one."""

    trace: Trace | None

    def when_left(self, callback: Callable[[], None], /) -> None:
        """Call back when the reader disconnects."""

    def forget(self) -> None:
        """Stop calling back when the reader disconnects."""


class Attempt:
    """Keys sent to one candidate. `indexes` are their places in the read, `partitions` the partitions they are in."""

    __slots__ = ("candidate", "client", "indexes", "partitions", "request")

    def __init__(self, candidate: Candidate, client: NodeClient, request: NodeRequest, indexes: Sequence[int]) -> None:
        self.candidate = candidate
        self.client = client
        self.request = request
        self.indexes = indexes
        self.partitions = list(dict.fromkeys(HopKeys.of(request.keys).partitions))


class Arrivals:
    """The replies of one read that it has not looked at, and whether its timer fired or its reader left."""

    def __init__(self, reader: Reader | None) -> None:
        self._reader = reader
        self._replies: list[tuple[Attempt, Reply]] = []
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_time = self._is_left = self._is_watched = False

    def add(self, attempt: Attempt, reply: Reply) -> None:
        """Take in a reply, and wake the read."""
        self._replies.append((attempt, reply))
        self._wake_up()

    async def wait(self) -> tuple[list[tuple[Attempt, Reply]], bool]:
        """Wait for replies or the timer. Return the replies, and whether the timer fired."""
        while not (self._replies or self._is_time or self._is_left):
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if self._is_left:
            raise ReaderLeftError
        replies, self._replies = self._replies, []
        is_time, self._is_time = self._is_time, False
        return replies, is_time

    def wake_in(self, ms: float) -> None:
        """Make `wait` return after so long at the latest. Of several calls the first counts."""
        self.watch()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ms / 1000, self._time_is_up)

    def watch(self) -> None:
        """Make `wait` raise when the reader disconnects. It may cost a task, so only long reads call it."""
        if self._reader is not None and not self._is_watched:
            self._is_watched = True
            self._reader.when_left(self._reader_left)

    def close(self) -> None:
        """Cancel the timer, and forget the reader."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None and self._is_watched:
            self._reader.forget()

    def _time_is_up(self) -> None:
        self._timer = None
        self._is_time = True
        self._wake_up()

    def _reader_left(self) -> None:
        self._is_left = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
