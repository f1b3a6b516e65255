"""How the page writes numbers: with units, and "?" for what is unknown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.page.words import age, batches, duration, number, percent, rate, size


@given(st.none() | st.floats(min_value=0, max_value=1e15))
def test_only_what_is_unknown_is_written_as_a_question_mark(value: float | None) -> None:
    for write in (number, duration, age, size, rate, percent, batches):
        assert ("?" in write(value)) is (value is None)


@given(st.floats(min_value=0, max_value=99.9949))
def test_a_share_below_all_is_never_written_as_all(value: float) -> None:
    assert percent(value) != "100 %"
