"""Sizes: what people write is read, what is shown can be read back, and the rest is refused with what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.texts import BadSizeError, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("67108864", 64 << 20),
        ("64MiB", 64 << 20),
        ("64mb", 64 << 20),
        ("10m", 10 << 20),
        (" 512 k ", 512 << 10),
        ("2G", 2 << 30),
        ("1TiB", 1 << 40),
        ("7b", 7),
    ],
)
def test_a_size_is_read_with_binary_units(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5g", "10 bytes", "64MiBs", "1e6", "٣m", "9" * 30])
def test_what_is_no_size_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(BadSizeError, match="64MiB"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**18 - 1))
def test_a_shown_size_is_read_back_as_the_same(size_bytes: int) -> None:
    assert parse_size(size_text(size_bytes)) == size_bytes
