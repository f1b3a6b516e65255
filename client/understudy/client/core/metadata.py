"""The placements of a client's stores: how long each counts, and when one is fetched anew (pure).

A call that finds one due fetches it on its way, alone; other calls go on with what is known. No call fetches at once
when something changes: a random part of `JITTER_S` passes first, so that many clients do not come together.
"""

from __future__ import annotations

import os

from understudy.client.core.addresses import NodeAddresses
from understudy.client.core.endpoints import Endpoint
from understudy.client.core.exchange import Failure, FailureKind, Headers, Outcome, Reply, Request, Results, Send, Steps
from understudy.client.core.placement import BadMetadataError, Order, Placement, parse_placement
from understudy.client.core.state import ClientState
from understudy.client.core.values import store_path

JITTER_S = 0.5
"""The time over which clients spread their first fetch of a store, and that after a sign of change. It doubles with
each sign in a row that was in vain.
"""

REFRESH_S = 15.0
"""The time after which a placement is asked for again, with its tag: what moved without a sign is known then."""

EXPIRY_S = 300.0
"""The age from which a placement is not used, and the assignment by which older ones are ignored is forgotten."""

FETCH_S, MIN_LEFT_S = 1.0, 0.1
"""The time that a router gets for metadata, at most; and what a call must have left to fetch it."""

_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 60.0
"""Pauses after metadata that did not come, or cannot be used: doubled each time."""

_MAX_TAG_CHARS = 200


class StoreMetadata:
    """The knowledge of one store. `etag` is the tag of its placement."""

    def __init__(self, store: str, due_s: float) -> None:
        self.store, self.due_s = store, due_s
        self.placement: Placement | None = None
        self.etag = ""
        self.confirmed_s = float("-inf")
        self.failures, self.in_vain = 0, 0
        """Fetches in a row without something of use, and those after a sign of change that brought nothing new."""
        self.is_change_expected = False
        self._fetchers: dict[int, object] = {}

    def __repr__(self) -> str:
        return f"StoreMetadata({self.store}, {self.placement!r})"

    def usable(self, now_s: float) -> Placement | None:
        """Return the placement, unless it is too old."""
        return self.placement if now_s - self.confirmed_s < EXPIRY_S else None

    def claim(self, fetcher: object) -> bool:
        """Whether this call is the one to fetch; it has to `release`. A forked child does not wait for its parent."""
        return self._fetchers.setdefault(os.getpid(), fetcher) is fetcher

    def release(self) -> None:
        """Let another call fetch."""
        self._fetchers.pop(os.getpid(), None)


class Metadata:
    """The knowledge of all stores of a client. `order` is the latest assignment that any of them is by."""

    def __init__(self, addresses: NodeAddresses, state: ClientState) -> None:
        self.order: Order = (0, 0)
        self.fetched = 0
        """The number of requests for metadata."""
        self._addresses, self._state = addresses, state
        self._confirmed_s = float("-inf")
        self._stores: dict[str, StoreMetadata] = {}

    def __repr__(self) -> str:
        return f"Metadata(term and epoch {self.order}, {len(self._stores)} stores)"

    def of(self, store: str, now_s: float) -> StoreMetadata:
        """Return what is known of a store; of a new one that is nothing, and it is fetched soon."""
        found = self._stores.get(store)
        if found is None:
            found = self._stores.setdefault(store, StoreMetadata(store, now_s + self._random(0, JITTER_S)))
        return found

    def changed(self, entry: StoreMetadata) -> None:
        """Fetch soon: something moved. Further signs change nothing, and after failures the pause goes on."""
        now_s, spread_s = self._state.now_s(), JITTER_S * 2.0**entry.in_vain
        if not entry.failures and entry.due_s > now_s + spread_s:
            entry.due_s = now_s + self._random(spread_s / 2 if entry.in_vain else 0, spread_s)
            entry.is_change_expected = True

    def fetch(self, entry: StoreMetadata, end_s: float) -> Steps[None]:
        """Fetch what is known of a store, unless another call does."""
        me = object()
        if end_s - self._state.now_s() < MIN_LEFT_S or not entry.claim(me):
            return
        try:
            now_s = self._state.now_s()
            if now_s >= entry.due_s:  # no other call did while this one came here
                self.fetched += 1
                router = self._state.servers.best(now_s, ())
                request = Request("GET", f"{store_path(entry.store)}/metadata")
                until_s = now_s + min(FETCH_S, (end_s - now_s) / 2)
                send = Send(router, self._state.named(request), self._headers(request, entry), until_s)
                outcome = yield send
                if isinstance(outcome, Failure) and outcome.kind is FailureKind.STALE:
                    outcome = yield send
                self._learn(entry, outcome, router)
        finally:
            entry.release()

    def _headers(self, request: Request, entry: StoreMetadata) -> Headers:
        headers = self._state.headers(request)
        return (*headers, ("if-none-match", entry.etag)) if entry.etag else headers

    def _learn(self, entry: StoreMetadata, outcome: Outcome | Results, router: Endpoint) -> None:
        """Take in what came of a fetch: a placement, the same one, or nothing of use."""
        found, etag = entry.placement, entry.etag
        if not isinstance(outcome, Reply):
            found = None
        elif outcome.status != 304 or not etag:
            etag = outcome.etag
            try:
                found = parse_placement(outcome, entry.store, self._addresses, router)
            except BadMetadataError:
                found = None
        if found is not None and self._take(entry, found, etag):
            return
        entry.failures = min(entry.failures + 1, 16)
        pause_s = min(_LAST_RETRY_S, _FIRST_RETRY_S * 2.0 ** (entry.failures - 1))
        entry.due_s = self._state.now_s() + pause_s * self._random(0.5, 1.0)

    def _take(self, entry: StoreMetadata, placement: Placement, etag: str) -> bool:
        """Use a placement from now on. Return False for one that is older than what is known: it is ignored."""
        is_forgotten = self._state.now_s() - self._confirmed_s >= EXPIRY_S
        if placement.order < self.order and not is_forgotten:
            return False
        is_new, is_same = placement.order != self.order, placement is entry.placement
        self.order, entry.placement = placement.order, placement
        entry.in_vain = min(entry.in_vain + 1, 5) if is_same and entry.is_change_expected else 0
        entry.is_change_expected = False
        entry.etag = etag if len(etag) <= _MAX_TAG_CHARS and etag.isascii() and etag.isprintable() else ""
        self._confirmed_s = entry.confirmed_s = self._state.now_s()
        entry.failures = 0
        entry.due_s = entry.confirmed_s + REFRESH_S * self._random(0.75, 1.25)
        for other in list(self._stores.values()) if is_new else ():
            if other is not entry:
                self.changed(other)
        return True

    def _random(self, low: float, high: float) -> float:
        return self._state.rng.uniform(low, high)
