"""How long a read waits before it is hedged: what is usual, within limits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from understudy_router.transport.node_requests import MIN_HEDGE_MS, Patience, Quantile


@given(took=st.lists(st.floats(0.2, 50_000), min_size=20, max_size=400))
def test_the_estimate_is_the_p95_or_at_most_a_bucket_above_it(took: list[float]) -> None:
    quantile = Quantile()
    for each in took:
        quantile.add(each)
    exact = sorted(took)[math.ceil(len(took) * 0.95) - 1]
    estimate = quantile.estimate_ms()
    assert estimate is not None
    assert exact * 0.999 <= estimate <= exact * 1.201


@given(took=st.lists(st.floats(0, 1e6), max_size=100), limit_ms=st.floats(1, 1000), is_active=st.booleans())
def test_a_hedge_waits_no_longer_than_configured_and_never_shorter_than_a_pause_lasts(
    took: list[float], limit_ms: float, is_active: bool
) -> None:
    patience = Patience(hedge_after_ms=limit_ms)
    for each in took:
        patience.took(each, is_active=is_active)
    assert MIN_HEDGE_MS <= patience.hedge_ms(is_active=is_active) <= max(limit_ms, MIN_HEDGE_MS)


def test_a_sick_node_cannot_raise_the_delay_above_the_limit() -> None:
    patience = Patience(hedge_after_ms=50)
    for _ in range(1000):
        patience.took(60_000, is_active=True)
    assert patience.hedge_ms(is_active=True) == 50
