"""What a load reports: percentiles that are true, ages that are never guessed, and nothing that grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.reading_commands import ABSENT, FOUND, REFUSED, UNKNOWN_LAG

from understudy.commands.benchmarking import LoadCounts, Measured


@given(values=st.lists(st.just(0.0) | st.floats(1e-4, 1e6), min_size=1, max_size=200), percent=st.floats(0.1, 100))
def test_a_percentile_is_not_exceeded_by_so_many_and_is_one_per_cent_too_high_at_most(
    values: list[float], percent: float
) -> None:
    histogram = Measured()
    for value in values:
        histogram.observe(value)
    found = histogram.percentile(percent)
    assert found is not None
    assert sum(value <= found * (1 + 1e-9) for value in values) >= len(values) * percent / 100 - 1e-6
    below = [value for value in values if value < found / 1.0101]
    assert len(below) <= len(values) * percent / 100 or found == 0
    assert histogram.largest == max(values)


def test_a_histogram_of_many_values_is_as_small_as_one_of_few() -> None:
    histogram = Measured()
    for number in range(200_000):
        histogram.observe(0.01 + number / 100)
    assert len(histogram.counts) == len(Measured().counts) < 2_600


@pytest.mark.parametrize(
    ("status", "body", "outcome", "lags", "unknown"),
    [
        (200, FOUND, "found", 1, 0),
        (404, ABSENT, "absent", 1, 0),
        (200, UNKNOWN_LAG, "found", 0, 1),
        (503, REFUSED, "no-acceptable-replica", 0, 0),
        (404, b"<html>", "status 404", 0, 0),
    ],
    ids=["found", "absent", "unknown lag", "refused", "another server"],
)
def test_each_reply_counts_for_what_it_says(status: int, body: bytes, outcome: str, lags: int, unknown: int) -> None:
    counts = LoadCounts()
    counts.answered(status, body, 1.5)
    assert counts.outcomes == {outcome: 1}
    assert (counts.time_lag_ms.total, counts.unknown_lags) == (lags, unknown)
    assert counts.roles == ({"active": 1} if lags or unknown else {})
    assert counts.are_all_answered is (outcome in {"found", "absent"})
