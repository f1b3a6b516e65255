"""The span of an attempt ends once: with what the node said, why it said nothing, or when nobody waits any more."""

from __future__ import annotations

from typing import Any

import pytest

from understudy_router.questions.lookup.forward import RecordedRequest
from understudy_router.transport.node_requests import Delay, NodeRequest, Outcomes, Reply
from understudy_shared.cluster.wire import HopFailure, WireError
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, PROBLEM, HopKey, HopOutcome
from understudy_shared.reads.bounds import NO_BOUND
from understudy_shared.telemetry.spans import Attributes, Trace

OWN = Trace("a" * 32, "c" * 16, True)
REFUSED = HopOutcome(PROBLEM, b'{"type":"store-error","detail":"?"}')


class OneSpan:
    """A span that counts what is done with it."""

    trace = OWN

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.errors: list[str] = []

    def note(self, attributes: Attributes) -> None:
        self.attributes.update(attributes)

    def end(self, *, error: str = "") -> None:
        self.errors.append(error)


def attempt() -> tuple[RecordedRequest, OneSpan, list[Reply]]:
    route: Any = None  # only its name is used, and not here
    replies: list[Reply] = []
    span = OneSpan()
    request = NodeRequest(route, NO_BOUND, [HopKey(0, b"")], replies.append, 0.0, 1.0, is_active=False)
    return RecordedRequest(request, span), span, replies


@pytest.mark.parametrize(
    ("outcomes", "attributes", "error"),
    [
        ([HopOutcome(FOUND, b"")], {}, ""),
        ([HopOutcome(ABSENT, b"")], {}, ""),
        ([HopOutcome(FOUND, b""), REFUSED], {"understudy.outcome": "store-error"}, ""),
        ([HopOutcome(PROBLEM, b"?")], {"understudy.outcome": str(WireError.BAD_REPLY)}, ""),
        (HopFailure("timeout", "no reply in time"), {}, "timeout"),
    ],
    ids=["found", "absent", "a problem", "no JSON", "no answer"],
)
def test_its_outcomes_end_the_span(outcomes: Outcomes, attributes: dict[str, str], error: str) -> None:
    request, span, replies = attempt()
    assert (request.trace, request.is_active, request.until_ms) == (OWN, False, 1.0)
    request.finish(outcomes)
    request.finish(outcomes)
    assert (replies, span.attributes, span.errors) == ([outcomes], attributes, [error])


def test_a_request_that_nobody_wants_any_more_ends_as_cancelled_and_says_if_it_was_slow() -> None:
    request, span, replies = attempt()
    request.report_delay(Delay.SLOW)
    request.drop()
    request.drop()
    request.finish([HopOutcome(FOUND, b"")])
    assert (replies, span.errors) == ([Delay.SLOW], ["cancelled"])
    request, span, _ = attempt()
    request.report_delay(Delay.SLOW)
    request.finish([HopOutcome(FOUND, b"")])
    assert span.attributes == {"understudy.delay": "slow"}
