"""The objects that the clients of all nodes share: their listener, their counters, and the facts about this router that
each hop carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from understudy_router.transport.hedge_delay import Patience
from understudy_router.transport.node_connections import IdleConnections
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import Clock
from understudy_shared.cluster.wire import HopFailure
from understudy_shared.questions.lookup.hop import HopGroup, HopReply, HopRequest, HopTrace, encode_request
from understudy_shared.server.request_counts import DURATION_BOUNDS_MS
from understudy_shared.telemetry.histogram import Histogram


class HopFacts(NamedTuple):
    """The facts that each hop tells the node: the newest end and the latest assignment that this router knows."""

    end_version: int
    term: int
    epoch: int


class Listener(Protocol):
    """The object that is notified of the result of each hop."""

    def known(self) -> HopFacts: ...

    def answered(self, node_id: str, reply: HopReply, took_ms: float) -> None: ...

    def failed(self, node_id: str, failure: HopFailure, *, sent: bool) -> None:
        """Take note of a hop that failed. `sent` is False when nothing was sent, which says nothing about the node."""

    def silent(self, node_id: str, for_ms: float) -> None:
        """Take note of a node that has answered nothing for `for_ms`, while others did. Called once until it answers
        again.
        """


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
    listener: Listener
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
