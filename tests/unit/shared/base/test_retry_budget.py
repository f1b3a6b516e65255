"""The retry budget: nothing is spent that was not earned, and nothing earned is kept for a storm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.retry_budget import FADE_MS, RetryBudget

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


@pytest.mark.parametrize(("percent", "per_s", "keys_per_s", "expected"), [(10, 3, 1000, 1030), (10, 3, 0, 30)])
def test_under_steady_traffic_it_holds_ten_seconds_of_earning(
    percent: int, per_s: int, keys_per_s: int, expected: int
) -> None:
    budget = RetryBudget(percent=percent, per_s=per_s, now_ms=0)
    for second in range(100):
        budget.asked(keys_per_s)
        budget.balance((second + 1) * 1000)
    assert budget.balance(100_000) == pytest.approx(expected, rel=0.01)


def test_it_starts_empty() -> None:
    budget = RetryBudget(percent=100, per_s=1000, now_ms=5000)
    assert not budget.try_spend(1, 5000)
    assert budget.try_spend(1, 5100)


def test_keys_are_paid_for_together_or_not_at_all() -> None:
    budget = RetryBudget(percent=10, per_s=0, now_ms=0)
    budget.asked(50)
    assert not budget.try_spend(6, 0)
    assert budget.try_spend(5, 0)
    assert not budget.try_spend(1, 0)


def test_a_budget_of_nothing_allows_nothing_ever() -> None:
    budget = RetryBudget(percent=0, per_s=0, now_ms=0)
    budget.asked(10_000)
    assert not budget.try_spend(1, 1e9)


@given(parts=st.integers(1, 50))
def test_how_often_it_is_looked_at_changes_nothing(parts: int) -> None:
    rare, often = (RetryBudget(percent=10, per_s=3, now_ms=0) for _ in range(2))
    rare.asked(100 * parts)
    for part in range(parts):
        often.asked(100)
        often.balance((part + 1) * 200)
    assert often.balance(parts * 200) == pytest.approx(rare.balance(parts * 200))
