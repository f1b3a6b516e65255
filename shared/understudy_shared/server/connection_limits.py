"""Limits on the resources that connections may use of a service (pure: no I/O, time is passed in).

Any process that reaches the port may send anything. Each limit is far above the need of an ordinary client (measured by
the defaults of Envoy and nginx at the edge). A client that exceeds a limit loses only its own connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeVar

from understudy_shared.http.target import MAX_TARGET_BYTES
from understudy_shared.server.phases import Phase

MAX_REQUEST_TARGET_BYTES = 2 * MAX_TARGET_BYTES + 1
"""Length of a path and a query, each as long as it may be, and the question mark between them."""

MAX_HEADER_BYTES = 16 * 1024
"""Bytes of names and values of a request's headers. nginx accepts 32 KiB, Envoy 60 KiB; a lookup needs no header."""

MAX_HEAD_BYTES = MAX_REQUEST_TARGET_BYTES + MAX_HEADER_BYTES

SLICE_BYTES = 4 * 1024
"""Bytes parsed at a time: a limit is exceeded by at most this much before it is noticed."""

SLICES_IN_A_TURN = 128
"""Slices of one read that are parsed before other connections go on: more than a read of usual requests has."""

MAX_SURPLUS_BYTES = 8 * 1024 * 1024
"""Bytes of a body that are read and dropped after the request was answered, so that the client sees the answer."""

MAX_LINGER_BYTES = 1024 * 1024
LINGER_S = 2.0
"""Seconds that a refused client has to read the answer. If bytes were unread at the close, the kernel would reset."""

MIN_BODY_BYTES_PER_S = 500
"""Least speed of a body after `body_timeout_ms`; a slower one is refused (as by Apache's mod_reqtimeout)."""

RESTRICTED_S = 2.0
"""Seconds that a connection above the limit has to request a probe or an internal path."""

MIN_EVICTION_AGE_S = 1.0
"""Seconds of silence after which a connection within a request may be closed to make room for another."""

KEEP_ALIVE_TIMEOUT_MS = 75_000
"""The default for readers, and the limit for routers and nodes, which the setting does not concern."""

EVICTED_AT_ONCE = 64
"""Share of the connections that is closed when there are too many: 1 in this number. Each search looks at all of them.
"""

SHED_PERCENT, REFUSE_PERCENT = 95, 98
"""Percent of the memory limit, as Envoy recommends for its overload manager at the edge."""

PROBES = frozenset({"/", "/livez", "/healthz", "/readyz", "/metrics"})
INTERNAL_PREFIX = "/internal/"

ENDLESS = "understudy.endless"
"""The key in the scope of a request whose answer does not end by itself."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits that a service's settings define, and two that have no setting."""

    max_connections: int = 10_000
    reserved_connections: int = 64
    memory_limit_bytes: int = 0
    header_timeout_ms: int = 10_000
    body_timeout_ms: int = 30_000
    unread_timeout_ms: int = 30_000
    first_request_timeout_ms: int = 60_000
    keep_alive_timeout_ms: int = KEEP_ALIVE_TIMEOUT_MS
    """Longer than the 60 s of common load balancers and proxies, so that they close an idle connection first. A client
    that sends while the service closes would get a reset.
    """


class ConnectionRefusal(StrEnum):
    """The reason why a connection or a request was refused; a label of `understudy_connections_refused_total`."""

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
    HOST = "host"


class ConnectionState(NamedTuple):
    """The state of a connection. `since_s`: its last progress. `began_s` and `body_bytes` concern a request's body."""

    phase: Phase
    since_s: float
    restricted: bool = False
    began_s: float = 0.0
    body_bytes: int = 0


_REASONS = {
    Phase.SILENT: ConnectionRefusal.SILENT,
    Phase.HANDSHAKE: ConnectionRefusal.HEADER_TIME,
    Phase.HEAD: ConnectionRefusal.HEADER_TIME,
    Phase.BODY: ConnectionRefusal.BODY_TIME,
    Phase.UNREAD: ConnectionRefusal.UNREAD,
}


def is_overdue(state: ConnectionState, limits: ConnectionLimits, now_s: float) -> bool:
    """Whether a connection exceeded the time limit of its phase."""
    phase, waited_s = state.phase, now_s - state.since_s
    match phase:
        case Phase.DIRECT | Phase.BUSY:
            return False
        case Phase.LINGERING:
            return waited_s > LINGER_S
        case Phase.SILENT:
            return waited_s > (RESTRICTED_S if state.restricted else limits.first_request_timeout_ms / 1000)
        case Phase.HANDSHAKE | Phase.HEAD:
            return waited_s > (RESTRICTED_S if state.restricted else limits.header_timeout_ms / 1000)
        case Phase.BODY:
            limit_s = limits.body_timeout_ms / 1000
            return waited_s > limit_s or now_s - state.began_s > limit_s + state.body_bytes / MIN_BODY_BYTES_PER_S
        case Phase.UNREAD:
            return waited_s > limits.unread_timeout_ms / 1000
        case Phase.IDLE_INTERNAL:
            return waited_s > KEEP_ALIVE_TIMEOUT_MS / 1000
    return waited_s > limits.keep_alive_timeout_ms / 1000


def reason_of(phase: Phase) -> ConnectionRefusal | None:
    """Return why an overdue connection is refused; None if it is closed without a refusal."""
    return _REASONS.get(phase)


def to_evict(found: Iterable[tuple[T, ConnectionState]], count: int, now_s: float) -> list[T]:
    """Return up to `count` connections to close for others: by phase, and within a phase the longest idle first."""
    candidates = [
        (state.phase, state.since_s, place, each)
        for place, (each, state) in enumerate(found)
        if state.phase < Phase.BUSY and _may_go(state, now_s)
    ]
    return [each for *_, each in sorted(candidates)[:count]]


def _may_go(state: ConnectionState, now_s: float) -> bool:
    in_request = state.phase in (Phase.HANDSHAKE, Phase.HEAD, Phase.BODY, Phase.UNREAD)
    return not in_request or now_s - state.since_s > MIN_EVICTION_AGE_S


def goes_under_pressure(state: ConnectionState, now_s: float) -> bool:
    """Whether a connection is closed when memory is short: it is idle, its peer does not read the answers, or its
    request takes long to arrive.
    """
    if state.phase is Phase.BODY:  # bodies that wait to be whole hold memory, and take no place in flight
        return now_s - state.began_s > MIN_EVICTION_AGE_S
    idle = state.phase in (Phase.SILENT, Phase.LINGERING, Phase.UNREAD, Phase.IDLE)
    return idle and now_s - state.since_s > MIN_EVICTION_AGE_S


def is_reserved(path: str) -> bool:
    """Whether a path is answered while others are refused: probes, and calls between services."""
    return path in PROBES or path.startswith(INTERNAL_PREFIX)


class Pressure(IntEnum):
    """The degree to which memory is short."""

    NONE = 0
    SHED = 1
    REFUSE = 2


def pressure(used_bytes: int, limit_bytes: int) -> Pressure:
    """Return how short memory is; with a limit of 0 it is never short."""
    if limit_bytes <= 0 or used_bytes * 100 < limit_bytes * SHED_PERCENT:
        return Pressure.NONE
    return Pressure.SHED if used_bytes * 100 < limit_bytes * REFUSE_PERCENT else Pressure.REFUSE


def connections_allowed(wanted: int, max_files: int) -> tuple[int, int]:
    """Return how many connections that many file descriptors allow, and how many more are reserved for probes.

    Half of the descriptors are left for files and for connections to other services: without a free descriptor,
    accepting fails, and the event loop resets each new connection.
    """
    share = max(2, max_files // 2)
    reserved = min(64, max(1, share // 8))
    return max(1, min(wanted, share - reserved)), reserved
