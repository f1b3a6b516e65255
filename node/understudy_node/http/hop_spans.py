"""The spans of a hop: one for each reader who sent a trace that is sampled, below the router's attempt."""

from __future__ import annotations

from collections.abc import Sequence

from understudy_node.http.read_log import outcome_text
from understudy_shared.reads.hop import PATH, HopRequest
from understudy_shared.reads.hop_columns import PROBLEM, HopOutcome
from understudy_shared.telemetry.spans import Kind, Spans, end_request

MAX_SPANS = 100
"""Limit on the spans that one hop records, which takes about 4 ms: any client that reaches the port may send traces."""


def record_hop(spans: Spans, request: HopRequest, outcomes: Sequence[HopOutcome], *, took_s: float) -> None:
    """Record spans for the answered lookups of a hop; they began when the hop came."""
    for place, trace in request.traces[:MAX_SPANS]:
        store, partition = _asked(request, place)
        span = spans.begin("POST", PATH, Kind.SERVER, trace, {"understudy.partition": partition}, ago_s=took_s)
        if span is None:
            continue
        outcome = outcomes[place]
        span.note({"understudy.outcome": outcome_text(outcome)})
        if outcome.kind != PROBLEM:  # Else a store of that name may not exist here.
            span.note({"understudy.store": store})
        end_request(span, 200)


def _asked(request: HopRequest, place: int) -> tuple[str, int]:
    """Return store and partition of a key of a hop."""
    for group in request.groups:
        if place < len(group.keys):
            return group.store, group.keys[place].partition
        place -= len(group.keys)
    raise AssertionError(f"place {place} is behind the keys of the hop")  # its header was checked
