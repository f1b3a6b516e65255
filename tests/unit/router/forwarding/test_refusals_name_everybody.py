"""When no candidate answers, the refusal names every candidate with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.crowds import BOUNDS, crowds

from understudy_router.cluster.candidates import Candidate
from understudy_router.forwarding.fallback import Rejection, ReplicaPlan
from understudy_router.routing.choose import choose
from understudy_shared.reads.bounds import Bound

REASONS = st.sampled_from(["refused", "timeout", "not-owner", "overloaded", "lag-exceeded", "store-error"])


def reasons_in(body: bytes) -> Mapping[str, Any]:
    return {each["node_id"]: each["reason"] for each in orjson.loads(body)["candidates"]}


@given(crowds(), BOUNDS, st.lists(REASONS, min_size=6, max_size=6), st.integers(0, 6))
def test_a_refusal_names_every_candidate_once_with_its_reason(
    crowd: list[Candidate], bound: Bound, reasons: list[str], asked: int
) -> None:
    """`asked` is how many candidates are asked before the deadline."""
    choice = choose(crowd, bound, key_hash=1, load={})
    plan, expected = ReplicaPlan(choice), {}
    for reason in reasons[:asked]:
        candidate = plan.next()
        if candidate is None:
            break
        plan.begin(candidate.node_id, candidate)
        plan.ended(candidate.node_id, Rejection(reason, "as the test wants it"))
        expected[candidate.node_id] = reason
    for candidate in choice.asked[len(expected) :]:
        expected[candidate.node_id] = "not-asked"
    expected |= {each.candidate.node_id: str(each.reason) for each in choice.exclusions}
    body = plan.refused(bound, late=len(choice.asked) > asked, after_ms=10).body()
    assert reasons_in(body) == expected
    assert len(orjson.loads(body)["candidates"]) == len(crowd)
