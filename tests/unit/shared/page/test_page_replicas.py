"""Which replicas the page shows, on which page, and how the state of the page stands in its URL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.page.replicas import (
    PageQuery,
    page_bounds,
    read_query,
)


@given(st.integers(0, 100_000), st.integers(1, 1000), st.integers(1, 100_000))
def test_pages_have_every_row_once_and_none_is_empty_while_there_are_rows(total: int, size: int, page: int) -> None:
    first, last, pages = page_bounds(total, size, page)
    assert 0 <= first <= last <= total
    assert last - first <= size
    assert (last > first) is (total > 0)
    if page <= pages:
        assert first == (page - 1) * size
        assert last == min(total, page * size)


@pytest.mark.parametrize(
    "parameters",
    [{"page": "0"}, {"page": "-1"}, {"page": "²"}, {"page": "9" * 30}, {"state": "<b>"}, {"view": "x"},
     {"store": "x" * 5000}, {"other": "1"}],
    ids=str,
)  # fmt: skip
def test_a_link_that_makes_no_sense_shows_the_page(parameters: dict[str, str]) -> None:
    assert read_query(parameters) == PageQuery()
