"""The retry budget: nothing is spent that was not earned, and nothing earned is kept for a storm."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.throttles import FADE_MS, RetryBudget

Event = tuple[float, int, int]
"""(ms since the step before, keys that are requested, keys that are to be retried)."""

HISTORY = st.lists(
    st.tuples(st.floats(0, 60_000), st.integers(0, 2000), st.integers(0, 300)),
    max_size=60,
)


@given(history=HISTORY, percent=st.integers(0, 100), per_s=st.integers(0, 100))
def test_it_is_never_overdrawn_and_never_spends_more_than_was_earned(
    history: list[Event], percent: int, per_s: int
) -> None:
    budget = RetryBudget(percent=percent, per_s=per_s, now_ms=0)
    now_ms, keys, spent = 0.0, 0, 0
    for after_ms, asked, wanted in history:
        now_ms += after_ms
        keys += asked
        budget.asked(asked)
        spent += wanted if budget.try_spend(wanted, now_ms) else 0
        assert budget.balance(now_ms) >= 0
        assert spent == budget.spent
        assert spent <= keys * percent / 100 + now_ms / 1000 * per_s + 1e-6


@given(history=HISTORY, idle_ms=st.floats(0, 1e9), percent=st.integers(0, 100), per_s=st.integers(0, 100))
def test_a_burst_after_a_long_silence_is_bounded_by_ten_seconds_of_earning(
    history: list[Event], idle_ms: float, percent: int, per_s: int
) -> None:
    budget = RetryBudget(percent=percent, per_s=per_s, now_ms=0)
    now_ms = 0.0
    for after_ms, asked, _ in history:
        now_ms += after_ms
        budget.asked(asked)
        budget.balance(now_ms)
    before = budget.balance(now_ms)
    limit = before * math.exp(-idle_ms / FADE_MS) + per_s * FADE_MS / 1000
    assert budget.balance(now_ms + idle_ms) <= limit + 1e-6


def test_keys_are_paid_for_together_or_not_at_all() -> None:
    budget = RetryBudget(percent=10, per_s=0, now_ms=0)
    budget.asked(50)
    assert not budget.try_spend(6, 0)
    assert budget.try_spend(5, 0)
    assert not budget.try_spend(1, 0)
