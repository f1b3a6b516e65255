"""Direct routing: ask the node that holds a key; on any doubt ask a router (pure).

Metadata of a router names the nodes. One call at a time fetches it when it is due; other calls use what is known. After
a change a random part of `JITTER_S` passes before a fetch, so that many clients do not come together.

Before: metadata names the node, or the reason to ask a router. A node or a partition that failed is not asked for a
growing pause. Failures are paid from a budget: while it is empty every read goes to a router, so direct routing adds
few requests however much is wrong.

After: an answer is used only if it comes from a running replica of known lag, of this application and lineage, at the
node that a router names as active. Otherwise the node may be a stranger at a reused address, follow another history, or
be restoring; a router would know. So no call fails because of direct routing, and no error of a call comes from a node.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from understudy.client.core.call import Judged, Meaning, judge
from understudy.client.core.exchange import (
    Endpoint,
    Failure,
    FailureKind,
    Headers,
    Outcome,
    Pauses,
    Reply,
    Request,
    Results,
    Send,
    Steps,
    Together,
)
from understudy.client.core.placement import BadMetadataError, NodeAddresses, Order, Placement, parse_placement
from understudy.client.core.state import RETRY_PER_S, RETRY_PERCENT, ClientState
from understudy.client.core.values import VERSIONS, store_path, wait_s
from understudy.client.results import RoutingCounts, Why
from understudy_shared.base.throttles import FADE_MS, RetryBudget

JITTER_S = 0.5
"""The time over which clients spread their fetches: the first of a store, and those after a sign of change. It doubles
with each sign in a row that changed nothing.
"""

REFRESH_S = 15.0
"""The time after which a placement is revalidated by its tag, which finds moves without a sign."""

EXPIRY_S = 300.0
"""Age at which a placement and its assignment expire."""

FETCH_S, MIN_LEFT_S = 1.0, 0.1
"""Time limit for a router's metadata, and the time a call must have left to fetch it."""

_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 60.0
"""Pauses after a failed fetch or unusable metadata: doubled each time."""

_MAX_TAG_CHARS = 200


class KnownStore:
    """The knowledge of one store. `etag` is the tag of its placement."""

    def __init__(self, store: str, due_s: float) -> None:
        self.store, self.due_s = store, due_s
        self.placement: Placement | None = None
        self.etag = ""
        self.confirmed_s = float("-inf")
        self.failures, self.in_vain = 0, 0
        """Fetches in a row that failed, and those after a sign of change that brought nothing new."""
        self.is_change_expected = False
        self._fetchers: dict[int, object] = {}

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
    """The knowledge of all stores of a client. `order` is the latest assignment of any of them."""

    def __init__(self, addresses: NodeAddresses, state: ClientState) -> None:
        self.order: Order = (0, 0)
        self.fetched = 0
        """The number of requests for metadata."""
        self._addresses, self._state = addresses, state
        self._confirmed_s = float("-inf")
        self._stores: dict[str, KnownStore] = {}

    def of(self, store: str, now_s: float) -> KnownStore:
        """Return what is known of a store; of a new one that is nothing, and it is fetched soon."""
        found = self._stores.get(store)
        if found is None:
            found = self._stores.setdefault(store, KnownStore(store, now_s + self._random(0, JITTER_S)))
        return found

    def changed(self, entry: KnownStore) -> None:
        """Fetch soon: something moved. Further signs change nothing, and a pause after failures continues."""
        now_s, spread_s = self._state.now_s(), JITTER_S * 2.0**entry.in_vain
        if not entry.failures and entry.due_s > now_s + spread_s:
            entry.due_s = now_s + self._random(spread_s / 2 if entry.in_vain else 0, spread_s)
            entry.is_change_expected = True

    def fetch(self, entry: KnownStore, end_s: float) -> Steps[None]:
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

    def _headers(self, request: Request, entry: KnownStore) -> Headers:
        headers = self._state.headers(request)
        return (*headers, ("if-none-match", entry.etag)) if entry.etag else headers

    def _learn(self, entry: KnownStore, outcome: Outcome | Results, router: Endpoint) -> None:
        """Take the result of a fetch: a placement, the same one, or nothing of use."""
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

    def _take(self, entry: KnownStore, placement: Placement, etag: str) -> bool:
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


LOOKUP_S = 1.0
"""Time limit of a node for one key: a node that hangs costs a call no more."""

MAX_WAIT_S = 1.0
"""Longest wait for a position at a node; for longer ones a router is asked, which knows the node that has it."""

_CREDENTIAL_PAUSE_S = 60.0
_OF_ROUTERS = (*VERSIONS, "cursor")

Members = Mapping[str, Any]
"""Bounds as JSON."""


class NodeRead(NamedTuple):
    """A read that a node is asked for, by what is known of the store.

    `members` are its bounds, with the store's defaults at the router; `partitions` has the partition of each key by its
    place in the call.
    """

    entry: KnownStore
    placement: Placement
    endpoint: Endpoint
    members: Members
    wait_s: float
    partitions: Mapping[int, int]


def _why(judged: Judged) -> Why:
    if judged.meaning is Meaning.ANSWER:
        return Why.DOUBT
    return Why.NOT_OWNER if judged.error is not None and judged.error.status == 421 else Why.FAILED


def _bounds(placement: Placement, given: Members) -> tuple[Members, float] | Why:
    """Return the bounds for a node, and their wait, or why a router must be asked for any key."""
    if placement.is_scattered:
        return Why.SCATTERED
    if not given and not placement.bounds:
        return given, 0.0
    members = {**placement.bounds, **given}
    waits_s = wait_s(members)
    is_of_routers = members.get("require_active") or not members.keys().isdisjoint(_OF_ROUTERS)
    return Why.BOUND if is_of_routers or waits_s > MAX_WAIT_S else (members, waits_s)


Target = Callable[[Members], str]
"""The target of a lookup under these bounds."""

Batch = Callable[[Sequence[Any], Members, float], Request]
"""The request of a batch of keys under these bounds, which let the server wait for so many seconds."""

Answer = Mapping[str, Any]

Found = dict[int, tuple[Answer, Answer]]
"""The results of a batch by the places of their keys, each with the read that it shares with others."""


def lookup_of(document: Any, store: str) -> Answer | None:
    """Return a document if it is the answer to a lookup in that store."""
    if (
        type(document) is dict
        and document.get("store") == store
        and type(document.get("found")) is bool
        and type(document.get("key")) is dict
        and type(document.get("position")) is str
    ):
        return document
    return None


def batch_of(document: Any, store: str, number: int) -> tuple[Sequence[Answer], Sequence[Answer]] | None:
    """Return the shared reads and the results of a document if it is the answer to a compact batch of so many keys."""
    match document:
        case {"store": str(name), "reads": [*reads], "results": [*results]} if name == store and len(results) == number:
            if {*map(type, reads), *map(type, results)} <= {dict}:
                return reads, results
    return None


def usable_results(
    reads: Sequence[Answer], results: Sequence[Answer], places: Sequence[int], keys: Sequence[Any], placement: Placement
) -> tuple[Found, Sequence[Answer]]:
    """Return the results that can be used, which are those of the keys, and the reads that they share."""
    trusted = [is_trusted(each, placement) for each in reads]
    shared: list[Any] = [
        each.get("read") if is_of_key and type(each["found"]) is bool else None
        for each, is_of_key in zip(results, placement.are_keys(keys, results), strict=True)
    ]
    if all(trusted) and {*map(type, shared)} == {int} and min(shared) >= 0 and max(shared) < len(reads):
        return dict(zip(places, zip(results, map(reads.__getitem__, shared), strict=True), strict=True)), reads
    found: Found = {}
    for place, result, at in zip(places, results, shared, strict=True):
        if type(at) is int and 0 <= at < len(reads) and trusted[at]:
            found[place] = result, reads[at]
    return found, [each for each, is_used in zip(reads, trusted, strict=True) if is_used]


def is_trusted(read: Answer, placement: Placement) -> bool:
    """Whether an answer is of the known history, from a running replica of known lag. A router would prefer another
    replica to one that restores, or is cut off from the checkpoint.
    """
    by, lag = read.get("served_by"), read.get("lag")
    return (
        type(by) is dict
        and by.get("state") == "RUNNING"
        and type(lag) is dict
        and isinstance(lag.get("offset_lag"), int)
        and placement.is_of_history(read.get("position"))
    )


class Direct:
    """The direct routing of one client, and what it remembers of nodes."""

    def __init__(self, addresses: NodeAddresses, state: ClientState) -> None:
        self._state = state
        self._metadata = Metadata(addresses, state)
        self._nodes: Pauses[Endpoint] = Pauses(state.rng)
        self._partitions: Pauses[tuple[Endpoint, KnownStore, int]] = Pauses(state.rng)
        self._all: Pauses[None] = Pauses(state.rng)
        # Its own, so that nodes that fail never cost a call its retries at routers.
        self._budget = RetryBudget(percent=RETRY_PERCENT, per_s=RETRY_PER_S, now_ms=state.now_s() * 1000 - FADE_MS)
        self._answered = 0
        self._routed: Counter[Why] = Counter()

    @property
    def counts(self) -> RoutingCounts:
        """Counts of keys answered by nodes, of keys asked of routers by reason, and of requests for metadata."""
        routed = {str(why): keys for why, keys in self._routed.items()}
        return RoutingCounts(self._answered, routed, self._metadata.fetched)

    def get(
        self, store: str, parts: Sequence[Any], given: Members, target: Target, end_s: float
    ) -> Steps[Answer | None]:
        """Return the answer of the node that holds a key; None where a router has to be asked.

        `end_s` is the end of the call, without what a bound lets the server wait.
        """
        now_s = self._state.now_s()
        entry = self._metadata.of(store, now_s)
        if entry.due_s <= now_s:
            yield from self._metadata.fetch(entry, end_s)
            now_s = self._state.now_s()
        read = self._read_of(entry, parts, given, now_s)
        if isinstance(read, Why):
            self._routed[read] += 1
            return None
        request = Request("GET", target(read.members), None, read.wait_s)
        judged = judge((yield self._attempt(read, request, end_s, LOOKUP_S)))
        if judged.meaning is Meaning.STALE:
            judged = judge((yield self._attempt(read, request, end_s, LOOKUP_S)))
        answer = lookup_of(judged.document, store)
        if answer is None or not is_trusted(answer, read.placement) or not read.placement.is_key(parts, answer["key"]):
            self._failed(read, judged, (0,))
            return None
        self._succeeded(read, (answer,), (0,))
        return answer

    def get_many(self, store: str, keys: Sequence[Any], given: Members, batch: Batch, end_s: float) -> Steps[Found]:
        """Return the results from nodes; the other keys have to be asked of routers."""
        now_s = self._state.now_s()
        entry = self._metadata.of(store, now_s)
        if entry.due_s <= now_s:
            yield from self._metadata.fetch(entry, end_s)
        reads = self._reads_of(entry, keys, given)
        calls = [self._ask_many(read, store, keys, batch, end_s) for read in reads]
        if len(calls) == 1:
            return (yield from calls[0])
        found: Found = {}
        if calls:
            outcome = yield Together(tuple(calls))
            assert isinstance(outcome, tuple)
            for part in outcome:
                found.update(part)
        return found

    def _ask_many(self, read: NodeRead, store: str, keys: Sequence[Any], batch: Batch, end_s: float) -> Steps[Found]:
        """Ask one node for its keys of a batch, and return the results that can be used."""
        places = list(read.partitions)
        request = batch([keys[at] for at in places], read.members, read.wait_s)
        judged = judge((yield self._attempt(read, request, end_s, end_s)))
        if judged.meaning is Meaning.STALE:
            judged = judge((yield self._attempt(read, request, end_s, end_s)))
        answer = batch_of(judged.document, store, len(places))
        asked = [keys[at] for at in places]
        found, shared = ({}, []) if answer is None else usable_results(*answer, places, asked, read.placement)
        if found:
            self._succeeded(read, shared, [*found])
        if len(found) < len(places):
            self._failed(read, judged, [at for at in places if at not in found])
        return found

    def _attempt(self, read: NodeRead, request: Request, end_s: float, limit_s: float) -> Send:
        """Return the step to ask a node. Half of the time left is kept for a router."""
        now_s = self._state.now_s()
        until_s = now_s + read.wait_s + min(limit_s, max(0.0, end_s - now_s) / 2)
        return Send(read.endpoint, self._state.named(request), self._state.headers(request), until_s)

    # ---- before a node is asked

    def _read_of(self, entry: KnownStore, parts: Sequence[Any], given: Members, now_s: float) -> NodeRead | Why:
        """Return the read of one key, or why a router is asked."""
        placement = entry.usable(now_s)
        if placement is None:
            return Why.NO_METADATA
        bounds = _bounds(placement, given)
        if isinstance(bounds, Why):
            return bounds
        partition = placement.partition(parts)
        if partition is None:
            return Why.KEY
        node = self._node_of(entry, placement, partition, now_s)
        return node if isinstance(node, Why) else NodeRead(entry, placement, node, *bounds, {0: partition})

    def _reads_of(self, entry: KnownStore, keys: Sequence[Any], given: Members) -> list[NodeRead]:
        """Return a read for each node that has some of the keys, and count the keys for routers."""
        now_s = self._state.now_s()
        placement = entry.usable(now_s)
        if placement is None:
            self._routed[Why.NO_METADATA] += len(keys)
            return []
        bounds = _bounds(placement, given)
        if isinstance(bounds, Why):
            self._routed[bounds] += len(keys)
            return []
        found = placement.partitions(keys)
        asked: dict[Endpoint | Why, dict[int, Any]] = {}
        by_partition = {
            each: asked.setdefault(Why.KEY if each is None else self._node_of(entry, placement, each, now_s), {})
            for each in set(found)
        }
        for at, partition in enumerate(found):
            by_partition[partition][at] = partition
        reads = []
        for node, partition_of in asked.items():
            if isinstance(node, Why):
                self._routed[node] += len(partition_of)
            else:
                reads.append(NodeRead(entry, placement, node, *bounds, partition_of))
        return reads

    def _node_of(self, entry: KnownStore, placement: Placement, partition: int, now_s: float) -> Endpoint | Why:
        """Return the node to ask for a partition, or why a router is asked."""
        endpoint = placement.actives[partition]
        if endpoint is None:
            return Why.NO_ACTIVE
        is_paused = (
            (self._all.failing and self._all.left_s(None, now_s))
            or (self._nodes.failing and self._nodes.left_s(endpoint, now_s))
            or (self._partitions.failing and self._partitions.left_s((endpoint, entry, partition), now_s))
        )
        return Why.PAUSED if is_paused else endpoint

    # ---- after it was asked

    def _succeeded(self, read: NodeRead, shared: Sequence[Answer], places: Collection[int]) -> None:
        """Note that a node gave the answers to the keys at these places."""
        self._answered += len(places)
        self._state.budget.asked(1)
        self._budget.asked(1)
        if self._nodes.failing:
            self._nodes.succeeded(read.endpoint)
        if self._all.failing:
            self._all.succeeded(None)
        if self._partitions.failing:
            for partition in {read.partitions[at] for at in places}:
                self._partitions.succeeded((read.endpoint, read.entry, partition))
        for each in shared:
            self._state.position.observe(each["position"])
            if each["served_by"].get("role") != "active":  # another node has become active
                self._metadata.changed(read.entry)

    def _failed(self, read: NodeRead, judged: Judged, places: Collection[int]) -> None:
        """Note that a node gave no usable answer for the keys at these places: routers are asked for them."""
        now_s = self._state.now_s()
        why = _why(judged)
        self._routed[why] += len(places)
        if judged.meaning is Meaning.UNAUTHENTICATED:
            self._nodes.failed(read.endpoint, now_s, _CREDENTIAL_PAUSE_S)
        elif judged.kind is not None or judged.blames_server or judged.meaning is Meaning.LIMITED:
            self._nodes.failed(read.endpoint, now_s, judged.retry_after_s)
        else:
            for partition in {read.partitions[at] for at in places}:
                self._partitions.failed((read.endpoint, read.entry, partition), now_s)
        if judged.meaning is not Meaning.NOT_SENT and not self._budget.try_spend(1, now_s * 1000):
            self._all.failed(None, now_s)
        if why is not Why.FAILED or judged.kind is not None:  # the assignment may be another by now
            self._metadata.changed(read.entry)
