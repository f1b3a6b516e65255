"""The hot path: lookups as plain ASGI in front of the FastAPI application, which serves everything else.

A framework's routing and validation cost four times what a lookup does. This module decides nothing: `Reads` parses
and answers, this sends. A single lookup never yields the event loop; a batch yields it between slices.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

from understudy_node.http.reads import Reads, batch_slices
from understudy_node.http.visibility import Visibility
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import Answer
from understudy_shared.bounds import Bound, Refusal
from understudy_shared.errors import UnderstudyError
from understudy_shared.http.edge import (
    JSON_TYPE,
    App,
    Receive,
    Scope,
    Send,
    bug,
    not_allowed,
    read_body,
    send_problem,
    send_reply,
    without_body,
)
from understudy_shared.http.lookup_requests import batch_longs, longs_as_text, parse_batch
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import split_path

_PREFIX = b"/v1/stores/"
_CALLS = (b"keys", b"lookup")


class LookupsFirst:
    """ASGI application. `requests` counts by (operation, outcome) for the metrics."""

    def __init__(self, app: App, reads: Reads, *, max_in_flight: int) -> None:
        self._app = app
        self._reads = reads
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self.visibility: Visibility | None = None
        self.requests: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw_path: bytes = scope["raw_path"]
            if raw_path.startswith(_PREFIX):
                call = raw_path[len(_PREFIX) :].partition(b"/")[2]
                if call.startswith(b"keys/") or call in _CALLS:
                    if scope["method"] == "GET":
                        return await self._lookup(raw_path, scope["query_string"], send)
                    if scope["method"] == "HEAD":
                        return await self._lookup(raw_path, scope["query_string"], without_body(send))
                    if scope["method"] == "POST" and call == b"lookup":
                        return await self._batch(raw_path, scope["query_string"], receive, send)
                    allow = "GET, HEAD, POST" if call == b"lookup" else "GET, HEAD"
                    return await self._reply("lookup", not_allowed(scope["method"], allow), send)
        return await self._app(scope, receive, send)

    async def _lookup(self, raw_path: bytes, query: bytes, send: Send) -> None:
        try:
            request = self._reads.parse(raw_path, query)
            if request.bound.min_position is not None:
                await self._reads.learn(request.bound.min_position)
            outcome = request.reader.look_up(request.key, request.bound)
            if request.bound.wait_ms and _may_pass(outcome):
                outcome = await self._wait(raw_path, query, request.bound.wait_ms)
            if request.longs_as_text and isinstance(outcome, Answer):
                outcome = Answer(outcome.status, longs_as_text(outcome.body))
        except UnderstudyError as error:
            outcome = problem_of(error)
        except Exception as error:
            outcome = bug(error)
        await self._reply("lookup", outcome, send)

    async def _wait(self, raw_path: bytes, query: bytes, wait_ms: int) -> Answer | Problem:
        """Look up again after every published version until there is an answer or the wait is over."""
        if self._in_flight >= self._max_in_flight or self.visibility is None:
            return Problem(ProblemType.OVERLOADED, f"{self._in_flight} lookups are waiting", fix="Retry after a second")
        deadline_s = time.monotonic() + wait_ms / 1000
        self._in_flight += 1
        try:
            while True:
                await self.visibility.wait(max(0.0, deadline_s - time.monotonic()))
                request = self._reads.parse(raw_path, query)
                outcome = request.reader.look_up(request.key, request.bound)
                if not _may_pass(outcome) or time.monotonic() >= deadline_s:
                    return outcome
        finally:
            self._in_flight -= 1

    async def _batch(self, raw_path: bytes, query: bytes, receive: Receive, send: Send) -> None:
        try:
            if self._in_flight >= self._max_in_flight:
                raise ProblemError(
                    Problem(
                        ProblemType.OVERLOADED, f"{self._in_flight} requests are in flight", fix="Retry after a second"
                    )
                )
            self._in_flight += 1
            try:
                await self._answer_batch(raw_path, batch_longs(query), receive, send)
            finally:
                self._in_flight -= 1
        except UnderstudyError as error:
            await self._reply("batch", problem_of(error), send)
        except Exception as error:
            await self._reply("batch", bug(error), send)

    async def _answer_batch(self, raw_path: bytes, longs: bool, receive: Receive, send: Send) -> None:
        match split_path(raw_path):
            case ["v1", "stores", name, "lookup"]:
                reader = self._reads.reader(name)
            case _:
                raise ProblemError(Problem(ProblemType.UNKNOWN_PATH, "batches go to /v1/stores/{store}/lookup"))
        keys, params = parse_batch(await read_body(receive))
        bound = self._reads.bound(reader, params)
        if bound.min_position is not None:
            await self._reads.learn(bound.min_position)
        if bound.wait_ms and bound.min_position is not None:
            await self._wait_for_all(reader.replicas.values(), bound)
        results: list[bytes] = []
        for part in batch_slices(reader, keys, bound):
            results += part
            await asyncio.sleep(0)
        self.requests["batch", "answered"] += 1
        body = b'{"results":[' + b",".join(results) + b"]}\n"
        await send_reply(send, 200, longs_as_text(body) if longs else body, JSON_TYPE)

    async def _wait_for_all(self, replicas: Iterable[TaskReplica], bound: Bound) -> None:
        """Wait until every partition reaches the batch's position; the keys of the others are refused one by one."""
        if self.visibility is None or bound.min_position is None:
            return
        deadline_s = time.monotonic() + bound.wait_ms / 1000
        wanted = bound.min_position.version
        while any(replica.view is None or replica.view.version < wanted for replica in replicas):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            await self.visibility.wait(left_s)

    async def _reply(self, operation: str, outcome: Answer | Problem, send: Send) -> None:
        if isinstance(outcome, Answer):
            self.requests[operation, "found" if outcome.status == 200 else "absent"] += 1
            await send_reply(send, outcome.status, outcome.body, JSON_TYPE)
        else:
            self.requests[operation, outcome.type.slug] += 1
            await send_problem(send, outcome)


def _may_pass(outcome: Answer | Problem) -> bool:
    """Whether the outcome may change while the reader waits: versions only increase."""
    return isinstance(outcome, Problem) and outcome.refusal is Refusal.BELOW_MIN_POSITION
