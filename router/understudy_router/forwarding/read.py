"""Keys of one store on their way: what was sent to whom, what came back, and what its reader waits for.

Bookkeeping alone: `forward` decides. An errand ends when each key has a result; then whatever is on the way is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.fallback import ReplicaPlan
from understudy_router.routing.candidates import Candidate
from understudy_router.transport.node_client import NodeClient
from understudy_router.transport.node_requests import NodeRequest, Reply
from understudy_shared.bounds import Bound
from understudy_shared.hop import HopKey, HopOutcome
from understudy_shared.http.edge import Receive
from understudy_shared.http.problems import Problem

Result = HopOutcome | Problem
"""FOUND or ABSENT, or why there is neither."""


class ReaderLeftError(Exception):
    """The reader is gone: there is nobody to answer."""


class Attempt:
    """Keys that were sent to one candidate. `partitions` are theirs, with the keys' indexes."""

    __slots__ = ("candidate", "client", "indexes", "partitions", "request")

    def __init__(self, candidate: Candidate, client: NodeClient, request: NodeRequest, indexes: Sequence[int]) -> None:
        self.candidate = candidate
        self.client = client
        self.request = request
        self.indexes = indexes
        self.partitions = list(dict.fromkeys(key[0] for key in request.keys))


class Read:
    """`walks` by partition; `results` by the key's index; `again` are partitions to be walked anew in a moment."""

    def __init__(
        self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], *, began_ms: float, deadline_ms: float
    ) -> None:
        self.route = route
        self.bound = bound
        self.keys = keys
        self.began_ms = began_ms
        self.deadline_ms = deadline_ms
        self.plans: dict[int, ReplicaPlan] = {}
        self.results: dict[int, Result] = {}
        self.again: set[int] = set()
        self._of: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            self._of.setdefault(key[0], []).append(index)
        self._attempts: set[Attempt] = set()
        self._arrived: deque[tuple[Attempt, Reply]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_time = False
        self._watch: asyncio.Task[None] | None = None
        self._is_gone = False

    @property
    def is_open(self) -> bool:
        """Whether keys are without a result."""
        return len(self.results) < len(self.keys)

    @property
    def partitions(self) -> Iterable[int]:
        """Those of its keys."""
        return self._of

    def open_keys(self, partitions: Iterable[int]) -> list[int]:
        """The indexes of the keys of these partitions that have no result."""
        results = self.results
        return [index for partition in partitions for index in self._of[partition] if index not in results]

    def sent(self, attempt: Attempt) -> None:
        """A leg is on its way, on behalf of its partitions' walks."""
        for partition in attempt.partitions:
            self.plans[partition].begin(attempt, attempt.candidate)
        self._attempts.add(attempt)

    def await_reply(self, attempt: Attempt, future: asyncio.Future[Reply]) -> None:
        """Hear of what comes of it, or of its next delay."""
        future.add_done_callback(partial(self._arrive, attempt))

    def ended(self, attempt: Attempt) -> None:
        """Nothing more will come of it."""
        self._attempts.discard(attempt)

    def prolong(self, partition: int) -> None:
        """There is nobody else to ask: who is on the way may take until the deadline."""
        for attempt in self._attempts:
            if partition in attempt.partitions:
                attempt.request.until_ms = self.deadline_ms

    def drop_answered(self) -> None:
        """Drop what is on the way for keys that were all answered by others."""
        for attempt in [
            attempt for attempt in self._attempts if all(index in self.results for index in attempt.indexes)
        ]:
            self._drop(attempt)

    def wake_in(self, ms: float) -> None:
        """Return from `news` by then at the latest; the first time asked for counts."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ms / 1000, self._time_is_up)

    def watch(self, receive: Receive) -> None:
        """Raise from `news` when the reader leaves. Only for errands that take long: it costs a task."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(_until_gone(receive), name="watch a reader")
            self._watch.add_done_callback(self._reader_left)

    async def news(self) -> tuple[list[tuple[Attempt, Reply]], bool]:
        """Wait for replies, or for the time that was asked for: what came, and whether it is that time."""
        while not (self._arrived or self._is_time or self._is_gone):
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if self._is_gone:
            raise ReaderLeftError
        arrived, is_time = list(self._arrived), self._is_time
        self._arrived.clear()
        self._is_time = False
        return arrived, is_time

    def close(self) -> None:
        """Drop what is still on the way, and stop to watch."""
        for attempt in list(self._attempts):
            self._drop(attempt)
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def _drop(self, attempt: Attempt) -> None:
        attempt.client.drop(attempt.request)
        self._attempts.discard(attempt)

    def _arrive(self, attempt: Attempt, future: asyncio.Future[Reply]) -> None:
        if not future.cancelled():
            self._arrived.append((attempt, future.result()))
            self._wake_up()

    def _time_is_up(self) -> None:
        self._timer = None
        self._is_time = True
        self._wake_up()

    def _reader_left(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            self._is_gone = watch.exception() is None
            self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


async def _until_gone(receive: Receive) -> None:
    """Return when the client has left; its request was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
