"""Reminders, throttled log lines, and the retry budget."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.throttles import FADE_MS, MAX_GAP_MS, REPEAT_MS, LogThrottle, Reminder, RetryBudget


def test_a_lasting_fault_is_logged_at_once_and_then_with_gaps_that_double_up_to_ten_minutes() -> None:
    reminder = Reminder()
    logged_s = [now_s for now_s in range(3 * 3600) if reminder.is_due(now_s * 1000)]
    assert logged_s[:8] == [0, 10, 30, 70, 150, 310, 630, 1230]
    gaps = [later - earlier for earlier, later in pairwise(logged_s)]
    assert set(gaps[6:]) == {MAX_GAP_MS // 1000}


def test_of_equal_lines_one_is_logged_in_a_minute_and_it_says_how_many_were_left_out() -> None:
    throttle = LogThrottle()
    assert throttle.admit("a", 0) == {}
    assert [throttle.admit("a", now_ms) for now_ms in (1, 30_000, 59_999)] == [None] * 3
    assert throttle.admit("b", 59_999) == {}
    assert throttle.admit("a", 60_000) == {"left_out": 3}
    assert throttle.admit("a", 60_001) is None


@given(steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50_000)), max_size=60))
def test_no_kind_is_logged_twice_in_a_minute_and_each_line_is_logged_or_counted(steps: list[tuple[str, int]]) -> None:
    throttle, now_ms = LogThrottle(), 0
    logged: dict[str, list[int]] = {}
    said = dict.fromkeys("abc", 0)
    for kind, later_ms in steps:
        now_ms += later_ms
        left_out = throttle.admit(kind, now_ms)
        if left_out is not None:
            logged.setdefault(kind, []).append(now_ms)
            said[kind] += 1 + left_out.get("left_out", 0)
    for kind, times in logged.items():
        assert all(later - earlier >= REPEAT_MS for earlier, later in pairwise(times))
        last = max(index for index, (each, _) in enumerate(steps) if each == kind)
        assert said[kind] <= sum(each == kind for each, _ in steps[: last + 1])


Event = tuple[float, int, int]
"""(ms since the step before, keys that are requested, keys that are to be retried)."""

HISTORY = st.lists(st.tuples(st.floats(0, 60_000), st.integers(0, 2000), st.integers(0, 300)), max_size=60)


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
