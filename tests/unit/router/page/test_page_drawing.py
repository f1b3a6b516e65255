"""Curves as paths: what is unknown is a gap, and no line leaves its frame."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from understudy_router.page.drawing import bar_percents, curve_path, spark_path, top_of

POINTS = st.lists(st.none() | st.integers(0, 10**6), max_size=80)


def test_unknown_values_are_gaps_and_a_value_alone_is_a_dash() -> None:
    assert curve_path([0, 1, None, 1, None, 0, 1], 1, 60, 12) == "M0.0 11.0L10.0 1.0M30.0 1.0h1M50.0 11.0L60.0 1.0"
    assert curve_path([], 1, 60, 12) == ""
    assert curve_path([None, None], 1, 60, 12) == ""


@given(POINTS)
def test_each_run_of_known_values_is_one_line_inside_the_frame(points: list[int | None]) -> None:
    path = curve_path(points, top_of(points), 600, 140)
    known = sum(value is not None for value in points)
    runs = sum(value is not None and (index == 0 or points[index - 1] is None) for index, value in enumerate(points))
    assert (path.count("M"), path.count("M") + path.count("L")) == (runs, known)
    for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path):
        assert 0 <= float(x) <= 600
        assert 1 <= float(y) <= 139


def test_a_small_curve_without_a_lag_lies_at_the_bottom() -> None:
    assert spark_path([0, 0]) == "M0.0 19.0L120.0 19.0"


@given(st.lists(st.integers(0, 10**9), max_size=20))
def test_every_bar_that_is_not_nothing_is_seen(counts: list[int]) -> None:
    percents = bar_percents(counts)
    assert [percent > 0 for percent in percents] == [value > 0 for value in counts]
    assert max(percents, default=0) in {0, 100}
