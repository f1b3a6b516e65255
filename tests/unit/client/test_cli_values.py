"""What people are shown: no value reaches a terminal as a control sequence, and nothing unknown becomes a number."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.terminal.reports import answer_rows, batch_row, quoted, shown
from understudy_shared.base.texts import printable

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


READ = {
    "key": {"k": "a"}, "found": True, "partition": 0, "version": 3, "committed_at": None, "watermark": None,
    "lag": {"offset_lag": 0, "end_offset_position": 3, "time_lag_ms": 5}, "position": "us1.x",
    "served_by": {"host": "h", "port": 1, "role": "active", "state": "RUNNING"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "rows", "cell"),
    [
        ({}, [], ""),
        (
            {"expires_at": "2024-03-01T00:00:00.000000Z", "expired": True},
            [("expires", "2024-03-01T00:00:00.000000Z", ""), ("expired", "true", "")],
            '{"expires":"2024-03-01T00:00:00.000000Z","expired":true}',
        ),
        (
            {"value": {"n": 1}, "timeout_at": None},
            [("value", "n", "1"), ("times out", "null", "")],
            '{"n":1}',
        ),
        (
            {"sessions": [{"start": "s", "end": "e", "value": {}}, {"start": "t", "end": "f", "value": {}}]},
            [
                ("sessions", "1", '{"start":"s","end":"e","value":{}}'),
                ("", "2", '{"start":"t","end":"f","value":{}}'),
            ],
            '[{"start":"s","end":"e","value":{}},{"start":"t","end":"f","value":{}}]',
        ),
        (
            {"rows": [{"value": {"n": 1}, "matched": False}]},
            [("rows", "1", '{"value":{"n":1},"matched":false}')],
            '[{"value":{"n":1},"matched":false}]',
        ),
        (
            {"values": [{"value": {"n": 1}}]},
            [("values", "1", '{"value":{"n":1}}')],
            '[{"value":{"n":1}}]',
        ),
        (
            {"entries": [{"key": {"p": "a"}, "value": {"n": 1}}]},
            [("entries", "1", '{"key":{"p":"a"},"value":{"n":1}}')],
            '[{"key":{"p":"a"},"value":{"n":1}}]',
        ),
        ({"timers": ["t"]}, [("timers", "1", '"t"')], '["t"]'),
    ],
    ids=["set", "expiring set", "group state", "sessions", "join side", "list", "map", "timers"],
)
def test_what_was_found_is_shown_by_the_members_that_its_kind_of_store_has(
    said: dict[str, object], rows: list[tuple[str, str, str]], cell: str
) -> None:
    shown_rows = answer_rows({**READ, **said}, raw=False)
    assert shown_rows[1 : 1 + len(rows)] == rows
    assert shown_rows[1 + len(rows)][0] == "version"
    assert batch_row({**READ, **said}, raw=False)[:3] == ('{"k":"a"}', "found", cell)
    assert len(batch_row({**READ, **said}, raw=True)) == 5
