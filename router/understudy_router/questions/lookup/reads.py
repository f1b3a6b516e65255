"""Parsing of requests for reads: target or batch to store, key, partition and bound (bytes in, no I/O).

Targets repeat, so parsed ones are cached, together with the beginning of every answer to them; never an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import orjson

from understudy_router.cluster.catalogue import StoreRoute, Stores
from understudy_router.forwarding.answer_ages import ServedReads
from understudy_router.questions.lookup.forward import KeyLookup
from understudy_shared.http.lookup_requests import (
    ReadParams,
    encoded_key,
    key_and_params,
    pop_longs,
    require_own_position,
    unknown_path,
)
from understudy_shared.http.problems import ProblemError
from understudy_shared.http.target import split_path
from understudy_shared.questions.lookup.hop_columns import HopKey
from understudy_shared.reads.bound_parsing import StoreBounds
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.server.parsed_cache import MAX_TARGET_BYTES, ParsedCache
from understudy_shared.server.request_counts import OperationCounts, RequestCounts
from understudy_shared.settings.common import DEFAULT_KEY_BYTES
from understudy_shared.spark.key_codec import Row

MAX_BOUNDS = 1024
"""Number of cached bounds: equal ones are one object, and travel as one group of a hop."""


class Request(NamedTuple):
    """A request for one key: `head` begins its answer; `counts` are those of its store."""

    lookup: KeyLookup
    head: bytes
    longs_as_text: bool
    counts: OperationCounts

    @property
    def key(self) -> dict[str, object]:
        """Its key as answers print it."""
        found: dict[str, object] = orjson.loads(self.head[:-1] + b"}")["key"]
        return found


class Reads:
    """The parser, by the stores that are known at that moment; `stores` raises a problem while no stores are known.
    `requests` counts the requests.
    """

    def __init__(
        self,
        stores: Callable[[], Stores],
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
        self._parsed_by: Stores | None = None
        self._targets: ParsedCache[Request] = ParsedCache(max_key_bytes=MAX_TARGET_BYTES)
        self._bounds: dict[Bound, Bound] = {}

    def parse(self, target: bytes) -> Request:
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
        """Return the store of that name; UnknownStoreError names the existing ones."""
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

    def _parse(self, stores: Stores, target: bytes) -> Request:
        raw_path, _, query = target.partition(b"?")
        match split_path(raw_path):
            case ["v1", "stores", name, *form] if form and form[0] in {"keys", "lookup"}:
                route = stores.get(name)
                row, params = key_and_params(route.codec, form, query)
                longs = pop_longs(params)
                key, head = keyed(route, row, self.max_key_bytes)
                bound, counts = self.bound(route, params), self.requests.of("lookup", route.name)
                lookup = KeyLookup(route, bound, (key,), self.served.of(route.name))
                return Request(lookup, head, longs, counts)
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
