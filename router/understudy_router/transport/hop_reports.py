"""Reports of hops to the tables: which node answered or failed; and what each hop tells the node."""

from __future__ import annotations

from understudy_router.cluster.tables import Tables
from understudy_router.cluster.watching import Watcher
from understudy_router.transport.client_context import HopFacts
from understudy_router.transport.hop_replies import OVERLOADED
from understudy_shared.base.clock import Clock
from understudy_shared.cluster.wire import HopFailure, WireError
from understudy_shared.questions.lookup.hop import HopReply

_NO_NODES_FAULT = {OVERLOADED, str(WireError.TOO_LARGE)}
"""If these made nodes suspect, each would hand its load, or the same huge value, on to the next."""


class HopReports:
    """The listener of a router's node clients."""

    def __init__(self, tables: Tables, watcher: Watcher, clock: Clock) -> None:
        self._tables = tables
        self._watcher = watcher
        self._clock = clock
        self._known = HopFacts(0, 0, 0)
        self._known_at = -1

    def known(self) -> HopFacts:
        """Return what a hop tells the node; the same until the tables change."""
        tables = self._tables
        if self._known_at != tables.version:
            self._known_at = tables.version
            term, epoch = (0, 0) if tables.assignment is None else tables.assignment.order
            self._known = HopFacts(tables.end_version, term, epoch)
        return self._known

    def answered(self, node_id: str, reply: HopReply, took_ms: float) -> None:
        """Report that a node answered a hop. When it follows a later assignment than this router, read that."""
        later = self._tables.hop_answered(
            node_id,
            self._clock.monotonic_ms(),
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
