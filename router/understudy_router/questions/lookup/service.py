"""Lookups and batches of a router: `RouterReads` parses, `Forwarder` asks the nodes, this replies.

Targets repeat, so parsed ones are cached, with the beginning of every answer to them, but never an answer. `Read`
notices a reader that leaves during a long wait; it is counted here as cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import orjson

from understudy_router.cluster.catalogue import CatalogueStores, StoreRoute
from understudy_router.forwarding.answer_ages import ServedReads
from understudy_router.forwarding.fallback import Result, Results
from understudy_router.questions.lookup.forward import Done, Forwarder, KeyLookup
from understudy_router.questions.moments import Moments
from understudy_shared.auth.access import Access
from understudy_shared.auth.permissions import require_key
from understudy_shared.auth.principals import EVERY_KEY, KeyScope
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import JSON_TYPE, App, bug
from understudy_shared.http.lookup_requests import (
    ReadParams,
    encoded_key,
    key_and_params,
    longs_as_text,
    pop_longs,
    require_own_position,
    unknown_path,
)
from understudy_shared.http.problems import Problem, ProblemError, problem_of
from understudy_shared.http.target import split_path
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.lookup.batches import BatchAnswer, BatchKeys, KeyBatch, problem_result, resolve_keys
from understudy_shared.questions.lookup.hop import FOUND, HopKey, HopKeys, HopOutcome
from understudy_shared.reads.bound_parsing import StoreBounds
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.server.app import ProcessReport
from understudy_shared.server.direct import Exchange
from understudy_shared.server.parsed_cache import MAX_TARGET_BYTES, ParsedCache
from understudy_shared.settings import DEFAULT_KEY_BYTES, Compression
from understudy_shared.spark.key_codec import ANY_PARTITION, Row
from understudy_shared.telemetry.metrics import OperationCounts, RequestCounts
from understudy_shared.telemetry.spans import RecordedTrace, Trace

MAX_BOUNDS = 1024
"""Number of cached bounds: equal ones are one object, and travel as one group of a hop."""


class ForwardedLookup(NamedTuple):
    """A request for one key: `head` begins its answer; `counts` are its store's."""

    lookup: KeyLookup
    head: bytes
    longs_as_text: bool
    counts: OperationCounts

    @property
    def key(self) -> dict[str, object]:
        """Its key as answers print it."""
        found: dict[str, object] = orjson.loads(self.head[:-1] + b"}")["key"]
        return found


class RouterReads:
    """The parser, by the stores that are known at that moment; `stores` raises a problem while no stores are known.
    `requests` counts the requests.
    """

    def __init__(
        self,
        stores: Callable[[], CatalogueStores],
        store_bounds: StoreBounds,
        served: ServedReads,
        *,
        max_key_bytes: int = DEFAULT_KEY_BYTES,
    ) -> None:
        self.requests = RequestCounts()
        self.served = served
        self.store_bounds = store_bounds
        self.max_key_bytes = max_key_bytes
        self.stores = stores
        self._parsed_by: CatalogueStores | None = None
        self._targets: ParsedCache[ForwardedLookup] = ParsedCache(max_key_bytes=MAX_TARGET_BYTES)
        self._bounds: dict[Bound, Bound] = {}

    def parse(self, target: bytes) -> ForwardedLookup:
        """Parse a GET of `/v1/stores/{store}/keys/...` or `/v1/stores/{store}/lookup?key=...`.

        Raises the problem of a request for something that does not exist.
        """
        stores = self.stores()
        if stores is not self._parsed_by:
            self._parsed_by = stores
            self._targets.clear()
            self.store_bounds.warn_of_unknown(stores.by_name)
        request = self._targets.get(target)
        if request is None:
            request = self._parse(stores, target)
            self._targets.keep(target, request)
        return request

    def has_store(self, name: str) -> bool:
        """Whether a store of that name is known now."""
        try:
            return name in self.stores().by_name
        except ProblemError:
            return False

    def route(self, name: str) -> StoreRoute:
        """Return the store of that name; NoSuchStoreError names the existing ones."""
        return self.stores().get(name)

    def bound(self, route: StoreRoute, params: ReadParams) -> Bound:
        """Return the bound of a reader of a store: an equal one is the same object each time."""
        bound = require_own_position(self.store_bounds.bound(route.name, params), route.application_id)
        if bound == NO_BOUND:
            return NO_BOUND
        if len(self._bounds) >= MAX_BOUNDS:
            self._bounds.clear()
        return self._bounds.setdefault(bound, bound)

    def bound_of(self, store: str, params: ReadParams) -> Bound:
        return self.bound(self.route(store), params)

    def _parse(self, stores: CatalogueStores, target: bytes) -> ForwardedLookup:
        raw_path, _, query = target.partition(b"?")
        match split_path(raw_path):
            case ["v1", "stores", name, *form] if form and form[0] in {"keys", "lookup"}:
                route = stores.get(name)
                row, params = key_and_params(route.codec, form, query)
                longs = pop_longs(params)
                key, head = keyed(route, row, self.max_key_bytes)
                bound, counts = self.bound(route, params), self.requests.of("lookup", route.name)
                lookup = KeyLookup(route, bound, (key,), self.served.of(route.name))
                return ForwardedLookup(lookup, head, longs, counts)
            case _:
                raise ProblemError(unknown_path(raw_path))


def keyed(route: StoreRoute, row: Row, max_key_bytes: int) -> tuple[HopKey, bytes]:
    """Return a row as it travels, and the beginning of its answer; hashing gives the partition, as it did for Spark."""
    encoded = encoded_key(route.codec, row, max_key_bytes)
    key = orjson.dumps(route.codec.to_json(encoded))
    return HopKey(route.codec.partition(row, route.partitions), encoded), b'{"store":%b,"key":%b,' % (
        route.json_name,
        key,
    )


log = logging.getLogger(__name__)

PARSE_SLICE_KEYS = 200
"""Number of keys parsed and hashed between two turns of the event loop: about 2 ms."""


class RouterLookups(LookupsFirst):
    """The replies to lookups, made by asking the nodes."""

    def __init__(
        self,
        app: App,
        reads: RouterReads,
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
        """Renew the lease of a bound, and return whether the bound names a time, whose version the nodes know."""
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

    def _done(self, request: ForwardedLookup, exchange: Exchange, result: Result | None, took_ms: float) -> None:
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

    async def look_up_many(self, batch: KeyBatch) -> bytes:
        route = self._reads.route(batch.store)
        resolved = await resolved_keys(route, batch.keys, self._reads.max_key_bytes, batch.scope)
        bound = await self._moments.resolved(self._reads.bound(route, batch.params))
        asked = HopKeys(resolved.partitions, resolved.rows)
        results = await self._forwarder.look_up_many(route, bound, asked, batch.exchange, resolved.problems)
        return batch_body(BatchAnswer(route.json_name, is_compact=batch.is_compact), resolved.printed, results)


def _tell_traced(request: ForwardedLookup, result: Result | None, took_ms: float, trace: Trace) -> None:
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
