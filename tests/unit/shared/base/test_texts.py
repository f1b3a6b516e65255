"""Which of two names of one setting counts (KIP-770, statement 61 of docs/kips.md)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.texts import renamed_option

VALUES = st.none() | st.integers(0, 3)


@pytest.mark.parametrize(
    ("new", "old", "value", "warns_of"),
    [
        pytest.param(None, 5, 5, "cache is deprecated: use store_cache", id="the old name alone"),
        pytest.param(7, 5, 7, "both set and differ; store_cache is used", id="two that differ"),
    ],
)
def test_statement_61_of_two_names_the_new_one_counts_and_the_warning_says_so(
    new: int | None, old: int | None, value: int | None, warns_of: str | None
) -> None:
    resolved, warning = renamed_option("store_cache", new, "cache", old)
    assert resolved == value
    assert (warning is None) == (warns_of is None)
    assert warns_of is None or warns_of in str(warning)


@given(new=VALUES, old=VALUES)
def test_the_new_name_alone_is_never_warned_of_and_never_overruled(new: int | None, old: int | None) -> None:
    resolved, warning = renamed_option("store_cache", new, "cache", old)
    assert resolved == (old if new is None else new)
    assert (warning is None) == (old is None or old == new)
