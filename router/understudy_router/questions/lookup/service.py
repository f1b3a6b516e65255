"""Lookups and batches of a router: `Reads` parses, `Forwarder` asks the nodes, this replies.

A reader that leaves while it waits for long is noticed by its `Read`, and counted here as cancelled: there is no
reader to answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.results import Result, Results
from understudy_router.questions.lookup.forward import Done, Forwarder, KeyLookup
from understudy_router.questions.lookup.reads import Reads, Request
from understudy_router.questions.moments import Moments
from understudy_shared.auth.access import Access
from understudy_shared.auth.principals import EVERY_KEY, KeyScope
from understudy_shared.auth.redaction import require_key
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import JSON_TYPE, App, bug
from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.lookup.batches import Batch, BatchAnswer, BatchKeys, problem_result, resolve_keys
from understudy_shared.questions.lookup.hop_columns import FOUND, HopKeys, HopOutcome
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.server.direct import Exchange
from understudy_shared.server.probes import ProcessReport
from understudy_shared.settings.common import Compression
from understudy_shared.spark.key_codec import ANY_PARTITION
from understudy_shared.telemetry.spans import RecordedTrace, Trace

log = logging.getLogger(__name__)

PARSE_SLICE_KEYS = 200
"""Number of keys parsed and hashed between two turns of the event loop: about 2 ms."""


class RouterLookups(LookupsFirst):
    """The replies to lookups, made by asking the nodes."""

    def __init__(
        self,
        app: App,
        reads: Reads,
        forwarder: Forwarder,
        moments: Moments,
        *,
        max_in_flight: int,
        access: Access | None = None,
        compression: Compression = Compression.GZIP,
    ) -> None:
        super().__init__(
            app,
            max_in_flight=max_in_flight,
            requests=reads.requests,
            failed=reads.served.failed,
            access=access,
            compression=compression,
        )
        self._reads = reads
        self._forwarder = forwarder
        self._moments = moments
        self._waiting: set[asyncio.Task[None]] = set()
        self.report: ProcessReport

    def answer(self, target: bytes, exchange: Exchange) -> None:
        request = self._reads.parse(target)
        if exchange.authorization.keys.prefixes is not None:
            require_key(exchange.authorization, request.key)
        self.begin()
        done = partial(self._done, request, exchange)
        lookup = request.lookup
        if lookup.bound is not NO_BOUND and self._is_of_a_moment(lookup.bound):
            task = asyncio.get_running_loop().create_task(self._look_up_at(lookup, exchange, done), name="a lookup")
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            return
        try:
            self._forwarder.look_up(lookup, exchange, done)
        except Exception as error:
            done(bug(error), 0.0)

    def _is_of_a_moment(self, bound: Bound) -> bool:
        """Whether a bound names a moment, whose version nodes know. Renew its lease."""
        self._moments.note_use(bound)
        return bound.at_us is not None

    async def _look_up_at(self, lookup: KeyLookup, exchange: Exchange, done: Done) -> None:
        """Look up a key as it was at a moment."""
        try:
            bound = await self._moments.resolved(lookup.bound)
            self._forwarder.look_up(lookup._replace(bound=bound), exchange, done)
        except UnderstudyError as error:
            done(problem_of(error), 0.0)
        except Exception as error:
            done(bug(error), 0.0)

    def _done(self, request: Request, exchange: Exchange, result: Result | None, took_ms: float) -> None:
        self.in_flight -= 1
        counts = request.counts
        counts.duration_ms.observe(took_ms)
        if exchange.trace is not None:
            _tell_traced(request, result, took_ms, exchange.trace)
        try:
            if isinstance(result, HopOutcome):
                body = request.head + result[1] + result[2]
                if request.longs_as_text:
                    body = longs_as_text(body)
                if result[0] == FOUND:
                    counts.outcomes["found"] += 1
                    exchange.reply(200, JSON_TYPE, body)
                else:
                    self.reply_absent(exchange, counts, body)
            elif result is None:
                counts.count("cancelled")
            else:
                self.reply_problem(exchange, result, counts)
        except Exception as error:
            self.reply_problem(exchange, bug(error), counts)

    def has_store(self, store: str) -> bool:
        return self._reads.has_store(store)

    async def look_up_many(self, batch: Batch) -> bytes:
        route = self._reads.route(batch.store)
        resolved = await resolved_keys(route, batch.keys, self._reads.max_key_bytes, batch.scope)
        bound = await self._moments.resolved(self._reads.bound(route, batch.params))
        asked = HopKeys(resolved.partitions, resolved.rows)
        results = await self._forwarder.look_up_many(route, bound, asked, batch.exchange, resolved.problems)
        return batch_body(BatchAnswer(route.json_name, is_compact=batch.is_compact), resolved.printed, results)


def _tell_traced(request: Request, result: Result | None, took_ms: float, trace: Trace) -> None:
    """Record the outcome of a traced lookup: in its span, and in the log at DEBUG."""
    if result is None:
        outcome = "cancelled"
    else:
        outcome = result.type.slug if isinstance(result, Problem) else "found" if result[0] == FOUND else "absent"
    store, partition = request.lookup.route.name, request.lookup.keys[0].partition
    place = {} if partition == ANY_PARTITION else {"partition": partition}
    if isinstance(trace, RecordedTrace):
        trace.span.note({**{f"understudy.{name}": each for name, each in place.items()}, "understudy.outcome": outcome})
    if log.isEnabledFor(logging.DEBUG):
        ids = {"store": store, **place, **trace.ids}
        fields = {"action": "read", "outcome": outcome, "took_ms": round(took_ms, 3), **ids}
        log.debug("a traced read: %s", outcome, extra=fields)


async def resolved_keys(
    route: StoreRoute, keys: Sequence[object], max_key_bytes: int, scope: KeyScope = EVERY_KEY
) -> BatchKeys:
    """Resolve the keys of a batch: parsed, encoded and placed, a bounded slice at a time."""
    resolved = BatchKeys([], [], [], {})
    for start in range(0, len(keys), PARSE_SLICE_KEYS):
        if start:
            await asyncio.sleep(0)
        part = keys[start : start + PARSE_SLICE_KEYS]
        resolved.extend(resolve_keys(route.codec, part, route.partitions, max_key_bytes, scope))
    return resolved


def batch_body(answer: BatchAnswer, printed: Sequence[bytes], results: Results) -> bytes:
    """Assemble the answer to a batch; `printed` is the JSON of each key. It takes `results` apart: count before."""
    for index, problem in results.problems.items():
        results.bodies[index] = problem_result(problem)
    return answer.of_columns(results.kinds, printed, results.bodies, results.tails)
