"""Attempts whose span is recorded: the span ends when the request has its outcomes, or is cancelled."""

from __future__ import annotations

from understudy_router.cluster.candidates import Candidate
from understudy_router.forwarding.fallback import rejection_by_problem
from understudy_router.transport.node_client import NodeClient
from understudy_router.transport.node_requests import NodeRequest, Outcomes
from understudy_shared.cluster.wire import HopFailure
from understudy_shared.questions.lookup.hop import PATH
from understudy_shared.questions.lookup.hop_columns import PROBLEM
from understudy_shared.telemetry.spans import Attributes, Kind, RecordedTrace, Span, Trace


class RecordedRequest(NodeRequest):
    """A request to a node, with the span of this attempt. The node's own spans are below it."""

    __slots__ = ("_span",)

    def __init__(self, request: NodeRequest, span: Span) -> None:
        super().__init__(
            request.route,
            request.bound,
            request.keys,
            request.on_reply,
            request.asked_ms,
            request.until_ms,
            request.is_active,
        )
        self.trace = span.trace
        self._span = span

    def finish(self, outcomes: Outcomes) -> None:
        if self.is_wanted:
            self._end(outcomes)
        super().finish(outcomes)

    def drop(self) -> None:
        if self.is_wanted:
            self._span.end(error="cancelled")
        super().drop()

    def _end(self, outcomes: Outcomes) -> None:
        if self.delay is not None:
            self._span.note({"understudy.delay": str(self.delay)})
        if isinstance(outcomes, HopFailure):
            self._span.end(error=str(outcomes.reason))
            return
        problem = next((outcome.body for outcome in outcomes if outcome.kind == PROBLEM), None)
        if problem is not None:
            self._span.note({"understudy.outcome": str(rejection_by_problem(problem).reason)})
        self._span.end()


def traced(request: NodeRequest, trace: Trace, candidate: Candidate, client: NodeClient) -> NodeRequest:
    """Give a request the trace of its reader, and a span of its own where the reader's trace is recorded."""
    if isinstance(trace, RecordedTrace):
        asked: Attributes = {
            "server.address": client.host.host,
            "server.port": client.host.port,
            "understudy.node_id": candidate.node_id,
            "understudy.role": candidate.role,
            "understudy.store": request.route.name,
            "understudy.keys": len(request.keys),
        }
        span = trace.spans.begin("POST", PATH, Kind.CLIENT, trace, asked)
        if span is not None:
            return RecordedRequest(request, span)
    request.trace = trace
    return request
