"""The state of one read: its keys, its attempts in flight, their replies, and what the reader waits for.

This is bookkeeping; `forward` decides. A read ends when each key has a result; attempts still in flight are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Protocol

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.fallback import Rejection, ReplicaPlan, Step, next_step, readers_mistake, rejection_by
from understudy_router.forwarding.results import Results
from understudy_router.routing.candidates import Candidate
from understudy_router.transport.node_client import NodeClient
from understudy_router.transport.node_requests import HopFailure, NodeRequest, OnReply, Outcomes, Reply
from understudy_shared.http.problems import Problem
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.hop_columns import (
    NO_PARTITION,
    OPEN,
    PROBLEM,
    HopKey,
    HopKeys,
    HopOutcome,
    HopOutcomes,
    indexes_by_partition,
)
from understudy_shared.server.direct import ReaderLeftError
from understudy_shared.telemetry.trace import Trace

NO_PROBLEMS: Mapping[int, Problem] = MappingProxyType({})


class Reader(Protocol):
    """Who waits for the results; an `Exchange` is one."""

    trace: Trace | None

    def when_left(self, callback: Callable[[], None], /) -> None:
        """Call back when the reader disconnects."""

    def forget(self) -> None:
        """No longer call back."""


class Attempt:
    """Keys sent to one candidate. `indexes` are their places in the read, `partitions` the partitions they are in."""

    __slots__ = ("candidate", "client", "indexes", "partitions", "request")

    def __init__(self, candidate: Candidate, client: NodeClient, request: NodeRequest, indexes: Sequence[int]) -> None:
        self.candidate = candidate
        self.client = client
        self.request = request
        self.indexes = indexes
        self.partitions = list(dict.fromkeys(HopKeys.of(request.keys).partitions))


class Read:
    """`plans` are by partition, `results` by index of the key; `again` holds partitions to plan anew in a moment.

    A key whose problem is known from the beginning has NO_PARTITION, and is never sent.
    """

    def __init__(
        self,
        route: StoreRoute,
        bound: Bound,
        keys: Sequence[HopKey],
        *,
        began_ms: float,
        deadline_ms: float,
        trace: Trace | None = None,
        problems: Mapping[int, Problem] = NO_PROBLEMS,
    ) -> None:
        self.route = route
        self.bound = bound
        self.keys = HopKeys.of(keys)
        self.began_ms = began_ms
        self.deadline_ms = deadline_ms
        self.trace = trace
        self.plans: dict[int, ReplicaPlan] = {}
        if self.keys.partitions.count(NO_PARTITION) != len(problems):
            raise ValueError("a key without a partition and without a problem would wait for ever")
        self.results = Results(len(keys), problems)
        self.again: set[int] = set()
        self._attempts: set[Attempt] = set()
        self._arrived: deque[tuple[Attempt, Reply]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_time = False
        self._reader: Reader | None = None
        self._is_gone = False

    @cached_property
    def partitions(self) -> Sequence[int]:
        """The partitions of its keys, each once."""
        return [partition for partition in dict.fromkeys(self.keys.partitions) if partition != NO_PARTITION]

    @cached_property
    def _indexes(self) -> Mapping[int, Sequence[int]]:
        """The indexes of the keys of each partition."""
        return indexes_by_partition(self.keys.partitions)

    def open_keys(self, partitions: Collection[int]) -> Sequence[int]:
        """The indexes of the keys in these partitions that have no result yet; a range if these are all keys. No
        partition is named twice.
        """
        if len(partitions) == len(self.partitions) and self.results.is_untouched:
            return range(len(self.keys))
        kinds = self.results.kinds
        return [index for partition in partitions for index in self._indexes[partition] if kinds[index] == OPEN]

    def keys_at(self, indexes: Sequence[int]) -> HopKeys:
        """The keys at these indexes."""
        is_all = isinstance(indexes, range) and len(indexes) == len(self.keys)
        return self.keys if is_all else self.keys.at(indexes)

    def sent(self, attempt: Attempt) -> None:
        """An attempt is in flight, for the plans of its partitions."""
        for partition in attempt.partitions:
            self.plans[partition].begin(attempt, attempt.candidate)
        self._attempts.add(attempt)

    def arrive_by(self, attempt: Attempt) -> OnReply:
        """What is called with the attempt's delays and outcomes."""
        return partial(self._arrive, attempt)

    def ended(self, attempt: Attempt) -> None:
        """An attempt is over."""
        self._attempts.discard(attempt)

    def keep(self, attempt: Attempt, reply: Outcomes) -> dict[int, Rejection]:
        """Store an attempt's answers and the reader's mistakes; return why the rest has none, by partition."""
        failed: dict[int, Rejection] = {}
        if type(reply) is HopOutcomes and PROBLEM not in reply.kinds:  # nearly always
            self.results.keep_all(attempt.indexes, reply)
            return failed
        outcomes: Iterable[HopOutcome | HopFailure] = (
            [reply] * len(attempt.indexes) if isinstance(reply, HopFailure) else reply
        )
        for index, outcome in zip(attempt.indexes, outcomes, strict=True):
            if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
                self.results.keep(index, outcome)
                continue
            rejection = rejection_by(outcome)
            if next_step(rejection.reason) is Step.STOP:
                self.results.refuse((index,), readers_mistake(rejection))
            else:
                failed.setdefault(self.keys[index].partition, rejection)
        return failed

    def prolong(self, partition: int) -> None:
        """No other candidate is left: attempts in flight for this partition may take until the deadline."""
        for attempt in self._attempts:
            if partition in attempt.partitions:
                attempt.request.until_ms = self.deadline_ms

    def drop_answered(self) -> None:
        """Cancel attempts whose keys were all answered by others."""
        kinds = self.results.kinds
        for attempt in list(self._attempts):
            if not any(kinds[index] == OPEN for index in attempt.indexes):
                self._drop(attempt)

    def wake_in(self, ms: float) -> None:
        """Make `news` return after so long at the latest. Of several calls the first counts."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ms / 1000, self._time_is_up)

    def watch(self, reader: Reader) -> None:
        """Make `news` raise when the reader disconnects. It may cost a task, so only long reads call it."""
        if self._reader is None:
            self._reader = reader
            reader.when_left(self._reader_left)

    async def news(self) -> tuple[list[tuple[Attempt, Reply]], bool]:
        """Wait for replies or the timer: the replies, and whether the timer fired."""
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
        """Cancel attempts in flight and the timer, and forget the reader."""
        for attempt in list(self._attempts):
            self._drop(attempt)
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None:
            self._reader.forget()

    def _drop(self, attempt: Attempt) -> None:
        attempt.client.drop(attempt.request)
        self._attempts.discard(attempt)

    def _arrive(self, attempt: Attempt, reply: Reply) -> None:
        self._arrived.append((attempt, reply))
        self._wake_up()

    def _time_is_up(self) -> None:
        self._timer = None
        self._is_time = True
        self._wake_up()

    def _reader_left(self) -> None:
        self._is_gone = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
