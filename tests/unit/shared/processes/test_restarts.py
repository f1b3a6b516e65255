"""When a worker process that ended is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.processes.restarts import MAX_DELAY_MS, STABLE_MS, Restarts


def test_the_first_end_costs_no_wait_and_each_further_one_twice_the_last() -> None:
    restarts = Restarts()
    assert [restarts.ended(100) for _ in range(9)] == [0, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]


def test_a_process_that_lived_long_begins_anew() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.ended(100)
    assert [restarts.ended(STABLE_MS), restarts.ended(100)] == [0, 500]


@given(lived_ms=st.lists(st.floats(0, 2 * STABLE_MS), max_size=2000))
def test_no_delay_is_longer_than_the_longest_or_shorter_than_the_one_before_in_a_row(lived_ms: list[float]) -> None:
    restarts, before = Restarts(), 0
    for lived in lived_ms:
        delay_ms = restarts.ended(lived)
        assert 0 <= delay_ms <= MAX_DELAY_MS
        assert delay_ms >= before or lived >= STABLE_MS
        before = delay_ms
