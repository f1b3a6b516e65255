"""Requests to one node, how they wait, and how one loop tick's become one hop (pure: no I/O, no clock).

A node request holds one reader's keys of one store under one bound; a hop carries many node requests. Requests with the
same store and bound share a group of the hop. They are compared by identity: an equal bound that is another object
costs one more group and changes no answer.

Before a hedge, a read waits for one node for the p95 latency of reads, but never above a fixed limit: a slow node
raises the percentile itself (CASSANDRA-14293). Actives and other replicas are measured separately.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate

from understudy_router.cluster.catalogue import StoreRoute
from understudy_shared.cluster.wire import HopFailure
from understudy_shared.questions.lookup.hop import HopGroup, HopKey, HopKeys, HopOutcome, HopOutcomes, HopTrace
from understudy_shared.reads.bounds import Bound
from understudy_shared.telemetry.spans import Trace

MIN_HEDGE_MS = 10.0
"""Shortest hedge delay: below it, a garbage collection or a busy loop would look like a slow node."""

PERCENTILE = 0.95

_STEP = math.log(1.2)
"""The logarithm of the ratio of neighbouring buckets. Each bucket's limit is 1.2 times the one before: an estimate is
at most 20 % too high.
"""

_FIRST_MS = 0.1
_BUCKETS = 75
"""Number of buckets: they reach up to 0.1 ms * 1.2^74, more than a minute."""

_MIN_COUNT = 20
"""Fewest measurements for an estimate: with fewer, one slow read would be the p95."""

_MAX_COUNT = 1000
"""The count that halves all counts: older reads weigh less, and a change shows after as many reads."""


class Quantile:
    """A decaying histogram."""

    def __init__(self) -> None:
        self._counts = [0.0] * _BUCKETS
        self._count = 0.0
        self._estimate_ms: float | None = None
        self._is_new = False

    def add(self, took_ms: float) -> None:
        """Add one measurement."""
        bucket = 0 if took_ms <= _FIRST_MS else math.ceil(math.log(took_ms / _FIRST_MS) / _STEP)
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self._count += 1
        self._is_new = True
        if self._count >= _MAX_COUNT:
            self._counts = [count / 2 for count in self._counts]
            self._count /= 2

    def estimate_ms(self) -> float | None:
        """Return the PERCENTILE, at most one bucket too high; `None` before _MIN_COUNT measurements."""
        # It is asked for once per tick, and changes with each read: computing it per read would be wasted.
        if self._is_new and self._count >= _MIN_COUNT:
            self._is_new = False
            self._estimate_ms = self._limit_ms()
        return self._estimate_ms

    def _limit_ms(self) -> float:
        left = self._count * PERCENTILE
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return float(_FIRST_MS * math.exp(_STEP * bucket))
        return float(_FIRST_MS * math.exp(_STEP * (_BUCKETS - 1)))


class Patience:
    """The hedge delay, by role."""

    def __init__(self, *, hedge_after_ms: float) -> None:
        """Set the limit of the hedge delay, in ms; 0 switches hedges off."""
        self.hedges = hedge_after_ms > 0
        self._limit_ms = hedge_after_ms
        self._active = Quantile()
        self._others = Quantile()

    def took(self, took_ms: float, *, is_active: bool) -> None:
        """Record how long a read of an active, or of another replica, took until its answer or its end."""
        (self._active if is_active else self._others).add(took_ms)

    def hedge_ms(self, *, is_active: bool) -> float:
        """Return the time to wait for a replica of this role, in ms; infinite when hedges are off."""
        if not self.hedges:
            return math.inf
        usual_ms = (self._active if is_active else self._others).estimate_ms()
        limit_ms = self._limit_ms if usual_ms is None else min(usual_ms, self._limit_ms)
        return max(limit_ms, MIN_HEDGE_MS)


MAX_KEYS_PER_HOP = 256
"""Most keys in one hop. The rest travels in the next hop: the node answers this one while the router makes that one;
with larger hops each would wait for the other. The limit never splits a request."""

MAX_WAITING_KEYS = 16_384
"""Most keys that may wait for one node, about 4 MB of small keys. The next request is refused as overloaded."""

MAX_ROW_BYTES_PER_HOP = 4 * 1024 * 1024
"""Most bytes of rows in one hop: half of the largest hop; the other half is room for headers."""


Outcomes = Sequence[HopOutcome] | HopFailure
"""The outcomes of a request's keys, one per key, in order; or the failure that left the request without outcomes."""


class Delay(StrEnum):
    """The reason why a request is reported as delayed."""

    SLOW = "slow"
    """Longer than usual, or longer than a reader should wait for one node alone."""

    SILENT = "silent"
    """No answer of the node to any request, while other nodes answer."""


Reply = Outcomes | Delay
"""The reports about a request: delays, each kind at most once, and then its outcomes."""

OnReply = Callable[[Reply], None]
"""A callback on the event loop, within the handling of other requests: it must not raise, nor take long."""


class NodeRequest:
    """Keys of one store under one bound, sent to one node. At `until_ms` the reader stops waiting for this node."""

    __slots__ = (
        "alone", "asked_ms", "bound", "delay", "is_active", "keys", "on_reply", "retried", "route", "trace", "until_ms",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917  # one per lookup: names cost time
        self,
        route: StoreRoute,
        bound: Bound,
        keys: Sequence[HopKey],
        on_reply: OnReply | None,
        asked_ms: float,
        until_ms: float,
        is_active: bool = True,
    ) -> None:
        """Make a request; `is_active` is the node's role for it: latencies are measured per role."""
        self.route = route
        self.bound = bound
        self.keys = keys
        self.on_reply = on_reply
        """The reader's callback; `None` when the reader has its outcomes, or no longer wants them."""
        self.asked_ms = asked_ms
        self.until_ms = until_ms
        self.is_active = is_active
        self.delay: Delay | None = None
        """The last delay reported to the reader."""
        self.retried = False
        self.alone = False
        """Whether the request must travel in a hop of its own: the reply to its shared hop was too large."""
        self.trace: Trace | None = None

    def __repr__(self) -> str:
        return f"NodeRequest({self.route.name}, {len(self.keys)} keys, until {self.until_ms:.0f})"

    @property
    def row_bytes(self) -> int:
        keys = self.keys
        return len(keys[0][1]) if len(keys) == 1 else sum(map(len, HopKeys.of(keys).rows))

    @property
    def is_wanted(self) -> bool:
        """Whether the reader still waits."""
        return self.on_reply is not None

    def finish(self, outcomes: Outcomes) -> None:
        """Give the reader its outcomes, if it still waits."""
        on_reply, self.on_reply = self.on_reply, None
        if on_reply is not None:
            on_reply(outcomes)

    def report_delay(self, why: Delay) -> None:
        """Report a delay to the reader, each kind once. Its outcomes count however late they are."""
        if self.delay is not why and self.on_reply is not None:
            self.delay = why
            self.on_reply(why)

    def drop(self) -> None:
        """Cancel the request: the reader has its answer, or is gone."""
        self.on_reply = None


class RequestQueue:
    """Requests in the order of their arrival. `keys` may count cancelled ones until the next purge."""

    def __init__(self) -> None:
        self.requests: deque[NodeRequest] = deque()
        self.keys = 0
        self._has_dropped = False

    def append(self, request: NodeRequest) -> bool:
        """Add a request at the end. Return False when there is no room."""
        keys = self.keys + len(request.keys)
        # Cancelled requests go only when their room is needed: to search for them at each append costs more.
        if keys > MAX_WAITING_KEYS:
            self._purge()
            keys = self.keys + len(request.keys)
            if keys > MAX_WAITING_KEYS:
                return False
        self.requests.append(request)
        self.keys = keys
        return True

    def put_back(self, requests: Sequence[NodeRequest]) -> None:
        """Put the requests of a hop that was lost at the front of the queue."""
        self._keep([*(request for request in requests if request.is_wanted), *self.requests])

    def drop(self, request: NodeRequest) -> None:
        """Cancel a request that its reader no longer wants."""
        request.drop()
        self._has_dropped = True

    def take(self, *, max_keys: int = MAX_KEYS_PER_HOP, max_bytes: int = MAX_ROW_BYTES_PER_HOP) -> list[NodeRequest]:
        """Take the requests of the next hop: as many as fit, at least one unless all were cancelled."""
        if self._has_dropped:
            self._purge()
        waiting = self.requests
        if len(waiting) == 1:  # nearly always, where requests come one by one
            self.keys = 0
            return [waiting.popleft()]
        taken: list[NodeRequest] = []
        keys = row_bytes = 0
        while waiting:
            request = waiting[0]
            count = len(request.keys)
            row_bytes += request.row_bytes
            # The first request is taken whatever its size: a limit must not hold it back for ever.
            if taken and (request.alone or keys + count > max_keys or row_bytes > max_bytes):
                break
            keys += count
            taken.append(waiting.popleft())
            if request.alone:
                break
        self.keys -= keys
        return taken

    def take_late(self, now_ms: float) -> list[NodeRequest]:
        """Take the requests past their deadline."""
        if self._has_dropped:
            self._purge()
        if not any(request.until_ms <= now_ms for request in self.requests):
            return []
        late = [request for request in self.requests if request.until_ms <= now_ms]
        self._keep([request for request in self.requests if request.until_ms > now_ms])
        return late

    def take_all(self) -> list[NodeRequest]:
        """Empty the queue."""
        requests = list(self.requests)
        self._keep([])
        return requests

    def _purge(self) -> None:
        self._has_dropped = False
        self._keep([request for request in self.requests if request.is_wanted])

    def _keep(self, requests: list[NodeRequest]) -> None:
        self.requests = deque(requests)
        self.keys = sum(len(request.keys) for request in requests)


class Hop:
    """Requests that travel together. `requests` are in the order of their outcomes, the oldest first."""

    __slots__ = ("first_until_ms", "groups", "is_traced", "keys", "requests", "sent_ms", "until_ms")

    def __init__(self, requests: Sequence[NodeRequest], sent_ms: float) -> None:
        self.sent_ms = sent_ms
        self.is_traced = False
        """Whether any of its requests has a trace, which is rare."""
        if len(requests) == 1:  # without lists of groups and times: most hops, where requests come one by one
            (request,) = self.requests = [*requests]
            self.is_traced = request.trace is not None
            self.groups = [_group(self.requests)]
            self.keys = len(request.keys)
            self.first_until_ms = self.until_ms = request.until_ms
            return
        grouped: dict[tuple[int, int], list[NodeRequest]] = {}
        for request in requests:
            if request.trace is not None:
                self.is_traced = True
            kind = (id(request.route), id(request.bound))
            if kind in grouped:
                grouped[kind].append(request)
            else:
                grouped[kind] = [request]
        # A reply has its outcomes in the order of the groups, not of arrival.
        self.requests = [request for together in grouped.values() for request in together]
        self.groups = [_group(together) for together in grouped.values()]
        self.keys = sum(len(group.keys) for group in self.groups)
        times = [request.until_ms for request in requests]
        self.first_until_ms = min(times)
        self.until_ms = max(times)

    @property
    def traces(self) -> Sequence[HopTrace]:
        """The traces of its readers."""
        ends = accumulate(len(request.keys) for request in self.requests)
        return [
            HopTrace(end - len(request.keys), request.trace)
            for request, end in zip(self.requests, ends, strict=True)
            if request.trace is not None
        ]

    def finish(self, outcomes: Sequence[HopOutcome]) -> None:
        """Give each request its own outcomes, one per key."""
        columns = outcomes if type(outcomes) is HopOutcomes else HopOutcomes.of(outcomes)
        kinds, bodies, tails = columns.kinds, columns.bodies, columns.tails
        start = 0
        for request in self.requests:
            count = len(request.keys)
            if count == 1:  # past the constructor of a named tuple, which takes twice as long
                request.finish((tuple.__new__(HopOutcome, (kinds[start], bodies[start], tails[start])),))
            else:
                request.finish(columns[start : start + count])
            start += count

    def is_over(self, now_ms: float) -> bool:
        """Whether no reader waits for this hop any longer. A reader may have extended its deadline meanwhile."""
        if self.until_ms <= now_ms:
            # Extended deadlines are checked only when the old one has passed.
            self.until_ms = max((request.until_ms for request in self.requests if request.is_wanted), default=now_ms)
        return self.until_ms <= now_ms


def parts_that_fit(
    keys: HopKeys, indexes: Sequence[int], *, max_bytes: int = MAX_ROW_BYTES_PER_HOP
) -> Iterator[Sequence[int]]:
    """Yield runs of indexes that fit into a hop together: the long keys of one batch may not all fit."""
    rows = keys.rows
    if sum(map(len, rows)) <= max_bytes:
        yield indexes
        return
    sizes = [len(rows[index]) for index in indexes]
    start = row_bytes = 0
    for at, size_bytes in enumerate(sizes):
        if at > start and row_bytes + size_bytes > max_bytes:
            yield indexes[start:at]
            start, row_bytes = at, 0
        row_bytes += size_bytes
    yield indexes[start:]


def _group(requests: Sequence[NodeRequest]) -> HopGroup:
    route = requests[0].route
    keys = requests[0].keys if len(requests) == 1 else _joined([request.keys for request in requests])
    return HopGroup(route.name, route.lineage, route.partitions, requests[0].bound, keys, route.layout)


def _joined(parts: Sequence[Sequence[HopKey]]) -> HopKeys:
    # Nearly always: single lookups of many readers.
    if max(map(len, parts)) == 1:
        keys = [part[0] for part in parts]
        return HopKeys([key[0] for key in keys], [key[1] for key in keys])
    columns = [HopKeys.of(part) for part in parts]
    return HopKeys(
        [partition for part in columns for partition in part.partitions], [row for part in columns for row in part.rows]
    )
