"""Lookups and batches of a node: `NodeReads` parses and answers, this replies.

A single lookup never yields the event loop, unless it may wait for a version; a batch yields it between slices.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import cast

from understudy_node.questions.lookup.hop import Hops
from understudy_node.questions.lookup.reads import LookupRequest, NodeReads, ReadLog, batch_slices
from understudy_node.replica.read_views import Reading
from understudy_node.stores.lookup import LookupAnswer
from understudy_shared.auth.access import Access
from understudy_shared.auth.permissions import require_printed_key
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import bug
from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.lookup.batches import BatchAnswer, KeyBatch
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.server.app import ProcessReport
from understudy_shared.server.direct import Exchange
from understudy_shared.settings import Compression

OPEN_WAIT_MS = 3_000
"""Longest time that a reader of an older version waits for it to be opened: as long as a router's deadline. After it
the reader is asked to retry, while the opening continues.
"""


LOOK_AGAIN_S = 0.1
"""Time after which a waiting reader tries again: a version may be published just before the wait begins."""


class Visibility:
    """A wake-up for the loop on which it is created."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._waiting = 0

    def changed(self) -> None:
        """Wake the waiting lookups; called from any thread after a version was published."""
        if self._waiting and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, timeout_s: float) -> None:
        """Return when something was published, or after `timeout_s`."""
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class NodeLookups(LookupsFirst):
    """The replies from the replicas of this node, in front of `hops`. `in_flight`: batches, and lookups that wait."""

    def __init__(
        self,
        hops: Hops,
        reads: NodeReads,
        *,
        max_in_flight: int,
        access: Access | None = None,
        compression: Compression = Compression.GZIP,
    ) -> None:
        super().__init__(
            hops, max_in_flight=max_in_flight, requests=reads.requests, access=access, compression=compression
        )
        self.application_id = reads.application_id
        self.accepts_body, self.answer_body = hops.accepts_body, hops.answer_body
        self.visibility: Visibility | None = None
        self.report: ProcessReport | None = None
        """The report of this application alone, for a process that has several."""
        self._reads = reads
        self._log = ReadLog()
        self._waiting: set[asyncio.Task[None]] = set()

    def answer(self, target: bytes, exchange: Exchange) -> None:
        began_s = monotonic()
        request = self._reads.parse(target)
        if exchange.authorization.keys.prefixes is not None:
            require_printed_key(exchange.authorization.keys, request.key.json)
        bound = request.bound
        if bound is NO_BOUND or self._is_at_once(bound):
            try:
                outcome = request.look_up(request.key, bound)
            except UnderstudyError as error:
                outcome = problem_of(error)
            if _wait_ms(outcome, bound) is None:
                self._reply(request, outcome, exchange)
                request.counts.duration_ms.observe((monotonic() - began_s) * 1000)
                return
        answer = self._answer_from(target, request, exchange, began_s)
        task = asyncio.get_running_loop().create_task(answer, name="a lookup")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def _is_at_once(self, bound: Bound) -> bool:
        """Renew the lease of a bound, and return whether it needs no file: it names neither a time nor a position."""
        if bound.lease is not None:
            self._reads.lease_used(bound.lease)
        return bound.min_position is None and bound.at_us is None

    async def _answer_from(self, target: bytes, request: LookupRequest, exchange: Exchange, began_s: float) -> None:
        """Answer a lookup of a version that may have to be learned, opened or waited for."""
        try:
            bound = await self._resolved(request.bound)
            if bound.min_position is not None:
                await self._reads.learn(bound.min_position)
            outcome = request.look_up(request.key, bound)
            if _wait_ms(outcome, bound):
                outcome = await self._wait(target, bound, began_s)
            self._reply(request, outcome, exchange)
        except UnderstudyError as error:
            self.reply_problem(exchange, problem_of(error), request.counts)
        except Exception as error:
            self.reply_problem(exchange, bug(error), request.counts)
        request.counts.duration_ms.observe((monotonic() - began_s) * 1000)

    async def _resolved(self, bound: Bound) -> Bound:
        """Return the bound with the version of its moment. That lists the commit log, so it counts as in flight."""
        if bound.at_us is None:
            return bound
        self.begin()
        try:
            return await self._reads.resolved(bound)
        finally:
            self.in_flight -= 1

    def _reply(self, request: LookupRequest, outcome: LookupAnswer | Problem, exchange: Exchange) -> None:
        if isinstance(outcome, Problem):
            partition = cast(int, outcome.extra.get("partition", request.key.partition))
            self._log.unread(request.reader.store.name, partition, outcome, exchange.trace)
            self.reply_problem(exchange, outcome, request.counts)
            return
        body = longs_as_text(outcome.body) if request.longs_as_text else outcome.body
        if outcome.status == 200:
            self.reply_found(exchange, request.counts, body)
        else:
            self.reply_absent(exchange, request.counts, body)

    async def _wait(self, target: bytes, bound: Bound, began_s: float) -> LookupAnswer | Problem:
        """Look up again after each published version, until there is an answer or the wait is over."""
        assert self.visibility is not None, "the application was started"
        self.begin()
        try:
            while True:
                request = self._reads.parse(target)
                outcome = request.look_up(request.key, bound)
                left_s = _left_s(outcome, bound, began_s)
                if left_s <= 0:
                    return outcome
                await self.visibility.wait(min(left_s, LOOK_AGAIN_S))
        finally:
            self.in_flight -= 1

    def has_store(self, store: str) -> bool:
        return self._reads.has_store(store)

    async def look_up_many(self, batch: KeyBatch) -> bytes:
        keys = batch.keys
        reader = self._reads.reader(batch.store)
        began_s = monotonic()
        bound = await self._reads.resolved(self._reads.bound(reader, batch.params))
        if bound.min_position is not None:
            await self._reads.learn(bound.min_position)
        while True:
            answer = BatchAnswer(reader.json_name, is_compact=batch.is_compact)
            results: list[bytes] = []
            readings: dict[int, Reading | Problem] = {}
            for part in batch_slices(reader, keys, bound, answer, batch.scope, readings):
                results += part
                if len(results) < len(keys):
                    await asyncio.sleep(0)
            # Partitions whose version may come are read again, and the others with them: each at one version.
            left_s = max((_left_s(each, bound, began_s) for each in readings.values()), default=0.0)
            if left_s <= 0 or self.visibility is None:
                return answer.body(results)
            await self.visibility.wait(min(left_s, LOOK_AGAIN_S))


def _wait_ms(outcome: object, bound: Bound) -> int | None:
    """Return the time for which an outcome may change while its reader waits; None where it does not change."""
    if not isinstance(outcome, Problem) or outcome.refusal is None or not outcome.refusal.may_pass:
        return None
    return max(OPEN_WAIT_MS, bound.wait_ms) if outcome.refusal is Refusal.VERSION_OPENING else bound.wait_ms


def _left_s(outcome: object, bound: Bound, began_s: float) -> float:
    """Return the time that is left to wait for another outcome; 0 or less when this one is final."""
    wait_ms = _wait_ms(outcome, bound)
    return 0.0 if wait_ms is None else began_s + wait_ms / 1000 - monotonic()
