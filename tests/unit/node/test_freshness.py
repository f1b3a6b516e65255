"""The delay from commit to visible of the last minute: never rounded down, and nothing older than a minute in it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.counters import FINE_BOUNDS_MS, SLICE_MS, SLICES, CommitToVisible

MINUTE_MS = SLICE_MS * SLICES
delays = st.floats(0, FINE_BOUNDS_MS[-1])


def true_quantile(values: list[float], share: float) -> float:
    """The least value that at least this share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


@given(values=st.lists(delays, min_size=1, max_size=50))
def test_quantiles_are_never_below_the_true_ones_and_at_most_a_tenth_above(values: list[float]) -> None:
    recent = CommitToVisible()
    for value in values:
        recent.observe(value, 1_000)
    found = recent.freshness(1_000)
    assert found is not None
    for said, share in ((found.p50_ms, 0.5), (found.p99_ms, 0.99)):
        exact = true_quantile(values, share)
        assert exact <= said <= max(exact + 1, exact * 1.1 + 1)


@given(steps=st.lists(st.tuples(st.floats(0, 20_000), delays), max_size=60))
def test_what_is_older_than_a_minute_does_not_count_and_what_is_younger_than_55_seconds_does(
    steps: list[tuple[float, float]],
) -> None:
    recent, now_ms = CommitToVisible(), 0.0
    seen: list[tuple[float, float]] = []
    for later_ms, delay_ms in steps:
        now_ms += later_ms
        recent.observe(delay_ms, now_ms)
        seen.append((now_ms, delay_ms))
        assert len(recent._slices) <= SLICES
        found = recent.freshness(now_ms)
        assert found is not None
        possible = [delay for at, delay in seen if now_ms - at < MINUTE_MS]
        certain = [delay for at, delay in seen if now_ms - at < MINUTE_MS - SLICE_MS]
        assert found.p99_ms <= max(possible) * 1.1 + 1
        assert found.p99_ms >= true_quantile(certain, 0.5) or len(possible) > len(certain)
    assert recent.freshness(now_ms + MINUTE_MS) is None
