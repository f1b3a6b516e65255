"""What one connection, and all of them together, may take of a service (pure: no I/O, time is passed in).

Whoever reaches a port may send what it likes. Each limit is far above what an ordinary client needs (Envoy's and nginx'
defaults for the edge are the measure), and a client that meets one loses its own connection, nobody else's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple, TypeVar

from understudy_shared.http.target import MAX_TARGET_BYTES

MAX_REQUEST_TARGET_BYTES = 2 * MAX_TARGET_BYTES + 1
"""A path and a query, each as long as it may be, and the question mark between them."""

MAX_HEADER_BYTES = 16 * 1024
"""Names and values of all headers of a request. nginx takes 32 KiB, Envoy 60 KiB; no header means anything here."""

MAX_HEAD_BYTES = MAX_REQUEST_TARGET_BYTES + MAX_HEADER_BYTES

SLICE_BYTES = 4 * 1024
"""Parsed at a time: so much more than a limit is parsed at most."""

MAX_SURPLUS_BYTES = 8 * 1024 * 1024
"""Of a body that goes on after its request was answered: read and dropped, so that the client sees the answer."""

MAX_LINGER_BYTES = 1024 * 1024
LINGER_S = 2.0
"""After a refusal the client has so long to read it. Closed with bytes unread, the kernel would send a reset."""

MIN_BODY_BYTES_PER_S = 500
"""A body that comes slower than this, `body_timeout_ms` apart, is given up (the same as Apache's mod_reqtimeout)."""

RESTRICTED_S = 2.0
"""A connection above the limit has so long to ask for a probe or an internal path."""

MIN_EVICTION_AGE_S = 1.0
"""What is in the middle of a request is only closed for another's sake when nothing came for so long."""

EVICTED_AT_ONCE = 64
"""One in so many connections is closed when there are too many: finding them looks at all."""

SHED_PERCENT, REFUSE_PERCENT = 95, 98
"""Of the memory limit, as Envoy's overload manager is set up at the edge."""

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
INTERNAL_PREFIX = "/internal/"

MAX_PEERS = 1024
LOG_EVERY_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits that a service's settings name, and two that they do not."""

    max_connections: int = 10_000
    reserved_connections: int = 64
    memory_limit_bytes: int = 0
    header_timeout_ms: int = 10_000
    body_timeout_ms: int = 30_000
    unread_timeout_ms: int = 30_000
    first_request_timeout_ms: int = 60_000
    idle_timeout_ms: int = 75_000
    """Longer than common load balancers and proxies leave a connection idle (60 s). So they close it, not the service:
    a reader that sends in the moment in which the service closes gets a reset."""


class Phase(Enum):
    """Where a connection stands. The value is the order in which they are closed when there are too many; None: never.

    Silent: no request yet. Unread: the peer does not read its answers. Lingering: refused, and still open for the peer
    to read why.
    """

    SILENT = 0
    LINGERING = 1
    UNREAD = 2
    HEAD = 3
    BODY = 4
    IDLE = 5
    IDLE_INTERNAL = 6
    BUSY = None


class Refusal(StrEnum):
    """Why a connection or a request was given up; a label of `understudy_connections_refused_total`."""

    CONNECTIONS = "connections"
    MEMORY = "memory"
    SILENT = "silent"
    HEADER_SIZE = "header-size"
    TARGET_SIZE = "target-size"
    HEADER_TIME = "header-time"
    BODY_TIME = "body-time"
    BODY_SIZE = "body-size"
    UNREAD = "unread"
    MALFORMED = "malformed"


class ConnectionState(NamedTuple):
    """A connection as the limits see it. `since_s`: when it last got on; the others are about a body."""

    phase: Phase
    since_s: float
    restricted: bool = False
    began_s: float = 0.0
    body_bytes: int = 0


_REASONS = {
    Phase.SILENT: Refusal.SILENT,
    Phase.HEAD: Refusal.HEADER_TIME,
    Phase.BODY: Refusal.BODY_TIME,
    Phase.UNREAD: Refusal.UNREAD,
}


def is_overdue(state: ConnectionState, limits: ConnectionLimits, now_s: float) -> bool:
    """Whether a connection took longer for what it does than it may."""
    phase, waited_s = state.phase, now_s - state.since_s
    match phase:
        case Phase.BUSY:
            return False
        case Phase.LINGERING:
            return waited_s > LINGER_S
        case Phase.SILENT:
            return waited_s > (RESTRICTED_S if state.restricted else limits.first_request_timeout_ms / 1000)
        case Phase.HEAD:
            return waited_s > (RESTRICTED_S if state.restricted else limits.header_timeout_ms / 1000)
        case Phase.BODY:
            limit_s = limits.body_timeout_ms / 1000
            return waited_s > limit_s or now_s - state.began_s > limit_s + state.body_bytes / MIN_BODY_BYTES_PER_S
        case Phase.UNREAD:
            return waited_s > limits.unread_timeout_ms / 1000
    return waited_s > limits.idle_timeout_ms / 1000


def reason_of(phase: Phase) -> Refusal | None:
    """What an overdue connection is refused for; None when closing it is the usual end."""
    return _REASONS.get(phase)


def to_evict(found: Iterable[tuple[T, ConnectionState]], count: int, now_s: float) -> list[T]:
    """Up to `count` connections that others need most: without a request first, the longest idle of its kind first."""
    candidates = [
        (state.phase.value, state.since_s, place, each)
        for place, (each, state) in enumerate(found)
        if state.phase.value is not None and _may_go(state, now_s)
    ]
    return [each for *_, each in sorted(candidates)[:count]]


def _may_go(state: ConnectionState, now_s: float) -> bool:
    in_request = state.phase in (Phase.HEAD, Phase.BODY, Phase.UNREAD)
    return not in_request or now_s - state.since_s > MIN_EVICTION_AGE_S


def goes_under_pressure(state: ConnectionState, now_s: float) -> bool:
    """Whether a connection is closed because memory is short: it idles, or holds answers that nobody reads."""
    idle = state.phase in (Phase.SILENT, Phase.LINGERING, Phase.UNREAD, Phase.IDLE)
    return idle and now_s - state.since_s > MIN_EVICTION_AGE_S


def is_reserved(path: str) -> bool:
    """Whether a path is answered when others are refused: probes, and what services ask each other."""
    return path in PROBES or path.startswith(INTERNAL_PREFIX)


class Pressure(IntEnum):
    """How short memory is."""

    NONE = 0
    SHED = 1
    REFUSE = 2


def pressure(used_bytes: int, limit_bytes: int) -> Pressure:
    """How short memory is; a limit of 0 is none."""
    if limit_bytes <= 0 or used_bytes * 100 < limit_bytes * SHED_PERCENT:
        return Pressure.NONE
    return Pressure.SHED if used_bytes * 100 < limit_bytes * REFUSE_PERCENT else Pressure.REFUSE


def connections_allowed(wanted: int, max_files: int) -> tuple[int, int]:
    """How many connections a process with so many file descriptors can have, and how many more are kept for probes.

    Half of the descriptors are left for files and for connections to others: without one left, accepting fails, and
    the event loop resets whoever comes.
    """
    share = max(2, max_files // 2)
    reserved = min(64, max(1, share // 8))
    return max(1, min(wanted, share - reserved)), reserved


class PeerLog:
    """Which refusal is worth a line: the first of a peer within a minute. Bounded: new peers beyond it are not told."""

    def __init__(self, max_peers: int = MAX_PEERS) -> None:
        self._max_peers = max_peers
        self._told_s: OrderedDict[str, float] = OrderedDict()

    def is_news(self, peer: str, now_s: float) -> bool:
        while self._told_s and now_s - next(iter(self._told_s.values())) >= LOG_EVERY_S:
            self._told_s.popitem(last=False)
        if peer in self._told_s or len(self._told_s) >= self._max_peers:
            return False
        self._told_s[peer] = now_s
        return True
