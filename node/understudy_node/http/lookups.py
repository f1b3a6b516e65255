"""Lookups and batches of a node: `Reads` parses and answers, this replies.

A single lookup never yields the event loop, unless it may wait for a version; a batch yields it between slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic

from understudy_node.http.hop import Hops
from understudy_node.http.read_log import ReadLog
from understudy_node.http.reads import Reads, Request, batch_slices
from understudy_node.http.visibility import Visibility
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import LookupAnswer
from understudy_shared.auth.access import Access
from understudy_shared.auth.principals import KeyScope
from understudy_shared.auth.shown import require_printed_key
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import Receive, bug, read_body
from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.reads.bounds import Bound, Refusal
from understudy_shared.server.batches import BatchAnswer, parse_batch
from understudy_shared.server.direct import Exchange
from understudy_shared.server.lookups import LookupsFirst
from understudy_shared.settings.common import Compression
from understudy_shared.telemetry.trace import Trace


class NodeLookups(LookupsFirst):
    """The replies from the replicas of this node, in front of `hops`. `in_flight`: batches, and lookups that wait."""

    def __init__(
        self,
        hops: Hops,
        reads: Reads,
        *,
        max_in_flight: int,
        access: Access | None = None,
        compression: Compression = Compression.GZIP,
    ) -> None:
        super().__init__(
            hops, max_in_flight=max_in_flight, requests=reads.requests, access=access, compression=compression
        )
        self.accepts_body, self.answer_body = hops.accepts_body, hops.answer_body
        self.visibility: Visibility | None = None
        self._reads = reads
        self._log = ReadLog()
        self._waiting: set[asyncio.Task[None]] = set()

    def answer(self, target: bytes, exchange: Exchange) -> None:
        began_s = monotonic()
        request = self._reads.parse(target)
        if exchange.authorization.keys.prefixes is not None:
            require_printed_key(exchange.authorization.keys, request.key.json)
        if request.bound.min_position is None:
            try:
                outcome = request.reader.look_up(request.key, request.bound)
            except UnderstudyError as error:
                outcome = problem_of(error)
            self._reply(request, outcome, exchange)
            request.counts.duration_ms.observe((monotonic() - began_s) * 1000)
            return
        answer = self._answer_from(target, request, exchange, began_s)
        task = asyncio.get_running_loop().create_task(answer, name="a lookup")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _answer_from(self, target: bytes, request: Request, exchange: Exchange, began_s: float) -> None:
        """Answer a lookup that asks for a position, which may have to be learned or waited for."""
        bound = request.bound
        try:
            if bound.min_position is not None:
                await self._reads.learn(bound.min_position)
            outcome = request.reader.look_up(request.key, bound)
            if bound.wait_ms and _may_pass(outcome):
                outcome = await self._wait(target, bound.wait_ms)
            self._reply(request, outcome, exchange)
        except UnderstudyError as error:
            self.reply_problem(exchange, problem_of(error), request.counts)
        except Exception as error:
            self.reply_problem(exchange, bug(error), request.counts)
        request.counts.duration_ms.observe((monotonic() - began_s) * 1000)

    def _reply(self, request: Request, outcome: LookupAnswer | Problem, exchange: Exchange) -> None:
        if isinstance(outcome, Problem):
            self._log.unread(request.reader.store.name, request.key.partition, outcome, exchange.trace)
            self.reply_problem(exchange, outcome, request.counts)
            return
        body = longs_as_text(outcome.body) if request.longs_as_text else outcome.body
        if outcome.status == 200:
            self.reply_found(exchange, request.counts, body)
        else:
            self.reply_absent(exchange, request.counts, body)

    async def _wait(self, target: bytes, wait_ms: int) -> LookupAnswer | Problem:
        """Look up again after every published version until there is an answer or the wait is over."""
        assert self.visibility is not None, "the application was started"
        deadline_s = monotonic() + wait_ms / 1000
        self.begin()
        try:
            while True:
                await self.visibility.wait(max(0.0, deadline_s - monotonic()))
                request = self._reads.parse(target)
                outcome = request.reader.look_up(request.key, request.bound)
                if not _may_pass(outcome) or monotonic() >= deadline_s:
                    return outcome
        finally:
            self.in_flight -= 1

    def has_store(self, store: str) -> bool:
        return self._reads.has_store(store)

    async def batch_body(
        self, store: str, receive: Receive, trace: Trace | None, scope: KeyScope, *, is_compact: bool
    ) -> bytes:
        reader = self._reads.reader(store)
        keys, params = parse_batch(await read_body(receive))
        bound = self._reads.bound(reader, params)
        if bound.min_position is not None:
            await self._reads.learn(bound.min_position)
        if bound.wait_ms and bound.min_position is not None:
            await self._wait_for_all(reader.replicas.values(), bound)
        answer = BatchAnswer(reader.json_name, is_compact=is_compact)
        results: list[bytes] = []
        for part in batch_slices(reader, keys, bound, answer, scope):
            results += part
            if len(results) < len(keys):
                await asyncio.sleep(0)
        return answer.body(results)

    async def _wait_for_all(self, replicas: Iterable[TaskReplica], bound: Bound) -> None:
        """Wait until every partition reaches the batch's position; the keys of the others are refused one by one."""
        if self.visibility is None or bound.min_position is None:
            return
        deadline_s = monotonic() + bound.wait_ms / 1000
        wanted = bound.min_position.version
        while any(replica.view is None or replica.view.version < wanted for replica in replicas):
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                return
            await self.visibility.wait(left_s)


def _may_pass(outcome: LookupAnswer | Problem) -> bool:
    """Whether the outcome may change while the reader waits: versions only increase."""
    return isinstance(outcome, Problem) and outcome.refusal is Refusal.BELOW_MIN_POSITION
