"""When a request to an object store is made again: a bound for one call, and one for all calls together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.store_files import RepeatBudget, StoreLimits


def test_waits_double_up_to_the_limit_and_are_jittered_from_zero() -> None:
    limits = StoreLimits(first_wait_ms=100, max_wait_ms=300)
    assert [limits.wait_ms(tries, lambda: 1.0) for tries in (1, 2, 3, 9)] == [100, 200, 300, 300]
    assert limits.wait_ms(3, lambda: 0.0) == 0


def test_a_budget_starts_full_and_is_filled_by_time_and_by_calls() -> None:
    budget = RepeatBudget(share=0.5, per_s=2.0, most=2)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert [budget.take(500.0), budget.take(500.0)] == [True, False]
    budget.called()
    budget.called()
    assert [budget.take(500.0), budget.take(500.0)] == [True, False]


def test_a_clock_that_stands_still_gives_nothing() -> None:
    budget = RepeatBudget(share=0.0, per_s=1000.0, most=1)
    assert [budget.take(7.0) for _ in range(5)] == [True, False, False, False, False]


@given(st.lists(st.one_of(st.none(), st.just(0.0), st.floats(0, 500)), max_size=200))
def test_repeats_never_exceed_what_calls_and_time_allow(steps: list[float | None]) -> None:
    """None is a call; a number is time that passes, and a repeat that is asked for."""
    budget = RepeatBudget(share=0.1, per_s=3.0, most=5.0)
    now_ms, calls, taken = 0.0, 0, 0
    for step in steps:
        if step is None:
            budget.called()
            calls += 1
        else:
            now_ms += step
            taken += budget.take(now_ms)
        assert taken <= 5.0 + 0.1 * calls + 3.0 * now_ms / 1000 + 1e-6
