"""How the page writes numbers: with units, and "?" for what is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_router.page.words import age, batches, count, duration, fixed, number, percent, rate, size


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "?"), (0, "0 ms"), (999.4, "999 ms"), (999.5, "1.0 s"), (9949, "9.9 s"), (9960, "10.0 s"),
        (10_000, "10 s"), (119_000, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (172_800_000, "2 d"),
    ],
)  # fmt: skip
def test_a_time_has_the_largest_unit_that_leaves_two_digits(ms: float | None, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (number(1240.4), "1,240"), (number(1_234_567), "1,234,567"), (number(None), "?"),
        (rate(0), "0"), (rate(0.25), "0.3"), (rate(1240.4), "1,240"), (rate(None), "?"),
        (size(0), "0 B"), (size(999), "999 B"),
        (size(1000), "1.0 kB"), (size(1_240_000_000), "1.2 GB"),
        (size(None), "?"),
        (percent(100), "100 %"), (percent(99.999), "99.99 %"), (percent(0), "0 %"), (percent(None), "?"),
        (batches(1), "1 batch"), (batches(0), "0 batches"), (batches(None), "? batches"), (count(1, "node"), "1 node"),
        (fixed(0.25, 1), "0.3"), (fixed(1234.56, 0), "1,235"),
    ],
)  # fmt: skip
def test_numbers_are_written_with_their_units(written: str, text: str) -> None:
    assert written == text


@given(st.none() | st.floats(min_value=0, max_value=1e15))
def test_only_what_is_unknown_is_written_as_a_question_mark(value: float | None) -> None:
    for write in (number, duration, age, size, rate, percent, batches):
        assert ("?" in write(value)) is (value is None)


@given(st.floats(min_value=0, max_value=99.9949))
def test_a_share_below_all_is_never_written_as_all(value: float) -> None:
    assert percent(value) != "100 %"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "?"),
        (0, "< 2 s"),
        (1999.9, "< 2 s"),
        (2000, "2 s"),
        (2999, "2 s"),
        (119_999, "119 s"),
        (180_000, "3 min"),
    ],
)
def test_an_age_is_as_exact_as_the_router_tells_it(ms: float | None, text: str) -> None:
    assert age(ms) == text
