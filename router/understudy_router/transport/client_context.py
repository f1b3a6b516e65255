"""The objects that the clients of all nodes share: connections, counters, and the reports of hops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from understudy_router.cluster.tables import Tables
from understudy_router.cluster.watching import ClusterWatcher
from understudy_router.transport.node_requests import Patience
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.node_calls import KeptConnections
from understudy_shared.cluster.wire import HopFailure, WireConnection, WireError, WireReply
from understudy_shared.questions.lookup.hop import (
    HopGroup,
    HopReply,
    HopRequest,
    HopTrace,
    decode_reply,
    encode_request,
)
from understudy_shared.reads.hop_fields import BadHopError
from understudy_shared.telemetry.metrics import DURATION_BOUNDS_MS, Histogram


class IdleConnections:
    """The connections that carry no hop, by address, for any application; closed when the last pool ends."""

    def __init__(self) -> None:
        self._idle: dict[HostInfo, list[WireConnection]] = {}
        self._pools: Counter[HostInfo] = Counter()

    def __repr__(self) -> str:
        return f"IdleConnections({sum(map(len, self._idle.values()))} to {len(self._idle)} nodes)"

    def begin(self, host: HostInfo) -> list[WireConnection]:
        """Return the idle connections to an address, for one more pool."""
        self._pools[host] += 1
        return self._idle.setdefault(host, [])

    def end(self, host: HostInfo, why: str) -> None:
        """Note that a pool has ended."""
        self._pools[host] -= 1
        if self._pools[host] <= 0:
            del self._pools[host]
            for connection in self._idle.pop(host, ()):
                connection.give_up(WireError.RESET, why)


class NodeConnections:
    """The open connections for hops, and those for other calls. The process that made them closes them."""

    def __init__(self) -> None:
        self.idle = IdleConnections()
        self.kept = KeptConnections()

    def close(self) -> None:
        """Close the connections for other calls. Those for hops are closed with the clients of the nodes."""
        self.kept.close()


MAX_DETAIL_CHARACTERS = 200
"""Most characters of a node's refusal that are kept with the events, and shown."""

OVERLOADED = "overloaded"


def decoded_reply(reply: WireReply, *, keys: int) -> HopReply | HopFailure:
    """Return the outcomes of a reply, one per key; or the failure that the reply stands for."""
    if reply.status != 200:
        return _refusal(reply)
    try:
        decoded = decode_reply(reply.body)
    except BadHopError as error:
        return HopFailure(WireError.BAD_REPLY, str(error))
    if len(decoded.outcomes) != keys:
        return HopFailure(WireError.BAD_REPLY, f"{len(decoded.outcomes)} outcomes for {keys} keys")
    return decoded


def _refusal(reply: WireReply) -> HopFailure:
    """Return the failure for a problem in place of outcomes. People see one line of its text."""
    try:
        problem = orjson.loads(reply.body)
        slug, detail = problem["type"], problem["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        slug = detail = None
    if not isinstance(slug, str) or not isinstance(detail, str):
        slug, detail = "", reply.body[:MAX_DETAIL_CHARACTERS].decode(errors="replace")
    detail = detail[:MAX_DETAIL_CHARACTERS]
    known = reply.status == 429 or slug == OVERLOADED
    return HopFailure(OVERLOADED if known else WireError.BAD_REPLY, f"status {reply.status}: {detail}")


_NO_NODES_FAULT = {OVERLOADED, str(WireError.TOO_LARGE)}
"""If these made nodes suspect, each would hand its load, or the same huge value, on to the next."""


class HopReports:
    """The reports of hops to the tables: who answered, failed or is silent; and what each hop tells the node."""

    def __init__(self, tables: Tables, watcher: ClusterWatcher, clock: Clock) -> None:
        self._tables = tables
        self._watcher = watcher
        self._clock = clock
        self._known = (0, 0, 0)
        self._known_at = -1

    def known(self) -> tuple[int, int, int]:
        """Return the newest end, and the term and epoch of the latest assignment; the same until the tables change."""
        tables = self._tables
        if self._known_at != tables.version:
            self._known_at = tables.version
            term, epoch = (0, 0) if tables.assignment is None else tables.assignment.order
            self._known = (tables.end_version, term, epoch)
        return self._known

    def answered(self, node_id: str, reply: HopReply, now_ms: float, took_ms: float) -> None:
        """Report that a node answered a hop. When it follows a later assignment than this router, read that."""
        later = self._tables.hop_answered(
            node_id,
            now_ms,
            took_ms=took_ms,
            term=reply.term,
            epoch=reply.epoch,
            end_version=reply.end_version,
        )
        if later:
            self._watcher.refresh()

    def failed(self, node_id: str, failure: HopFailure, *, sent: bool) -> None:
        """Report that a node did not answer a hop. Do not blame it for a hop that was not sent, or is huge."""
        if sent and failure.reason not in _NO_NODES_FAULT:
            self._tables.hop_failed(node_id, self._clock.monotonic_ms(), f"{failure.reason}: {failure.detail}")

    def silent(self, node_id: str, for_ms: float) -> None:
        """Report that a node is silent while others answer."""
        self._tables.hop_silent(node_id, self._clock.monotonic_ms(), for_ms)


class HopCounts:
    """The counters of hops for the metrics."""

    def __init__(self) -> None:
        self.duration_ms = Histogram(DURATION_BOUNDS_MS)
        self.keys = 0
        self.failed = 0
        self.retried = 0
        self.silences = 0


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The shared objects of the node clients; `identity` is shown to the nodes."""

    application_id: str
    listener: HopReports
    patience: Patience
    clock: Clock
    identity: ClusterIdentity
    idle: IdleConnections = field(default_factory=IdleConnections)
    counts: HopCounts = field(default_factory=HopCounts)

    def encode(self, deadline_ms: int, groups: Sequence[HopGroup] = (), traces: Sequence[HopTrace] = ()) -> bytes:
        """Encode the body of a hop."""
        end_version, term, epoch = self.listener.known()
        request = HopRequest(self.application_id, end_version, term, epoch, deadline_ms, groups, traces=traces)
        return encode_request(request)

    def failed(self, node_id: str, failure: HopFailure, *, sent: bool) -> None:
        """Count a hop that failed, and report it."""
        self.counts.failed += 1
        self.listener.failed(node_id, failure, sent=sent)
