"""What people are shown: no value reaches a terminal as a control sequence, and nothing unknown becomes a number."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.terminal.values import quoted, shown
from understudy_shared.base.printable import printable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)  # fmt: skip


@given(JSON)
def test_a_shown_value_is_one_printable_line(value: object) -> None:
    assert shown(value).isprintable()


@given(st.text())
def test_a_text_of_others_is_one_printable_line_and_a_printable_one_is_kept(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text) == text or not text.isprintable()


@given(JSON)
def test_a_quoted_value_of_basic_characters_reads_back_as_the_same(value: object) -> None:
    if all(ord(char) < 0x10000 for char in orjson.dumps(value).decode()):
        assert orjson.loads(quoted(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("N14228", "N14228"),
        ("", '""'),
        (" a", '" a"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        (None, "null"),
        ([1, "a"], '[1,"a"]'),
    ],
)
def test_a_text_that_could_mislead_is_quoted(value: object, text: str) -> None:
    assert shown(value) == text
