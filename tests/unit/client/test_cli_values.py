"""What people are shown: no value reaches a terminal as a control sequence, and nothing unknown becomes a number."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.terminal.lag_reports import lag_page
from understudy.terminal.pages import Lines, Sheet
from understudy.terminal.reports import not_served_lines, store_fields, store_row, unnamed_lines
from understudy.terminal.values import answer_rows, batch_row, count_text, duration_text, quoted, shown
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


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "unknown"), (0, "0 ms"), (9_999, "9999 ms"), (10_000, "10.0 s"), (240_000, "4.0 min"), (10**9, "11.6 d")],
)
def test_a_duration_is_shown_in_a_unit_that_fits(ms: int | None, text: str) -> None:
    assert duration_text(ms) == text


def test_an_unknown_count_is_unknown_and_not_zero() -> None:
    assert (count_text(None, "versions"), count_text(0, "versions")) == ("unknown", "0 versions")


PARTITION: dict[str, object] = {
    "partition": 0, "role": "active", "state": "RUNNING", "current_offset_position": 5, "end_offset_position": 6,
    "offset_lag": 1, "time_lag_ms": 12, "committed_at": "2026-11-20T11:00:03.120000Z", "keys": 3, "overlay_bytes": 0,
    "marks": ["stale-snapshot"], "error": None,
}  # fmt: skip
RESTORING = PARTITION | {
    "partition": 1, "state": "RESTORING", "current_offset_position": None, "end_offset_position": None,
    "offset_lag": None, "time_lag_ms": None, "committed_at": None, "keys": None, "marks": [], "error": "torn\nfile",
}  # fmt: skip
REPORT = {
    "application_id": "flights", "end_offset_position": 6, "end_confirmed": False, "restoring_layout": 8,
    "query": {"state": "unknown", "last_batch": 5, "last_commit_at": None, "batch_in_progress": True},
    "hints": ["use RocksDB"], "stores": [{"store": "op0", "operator_id": 0, "partitions": [PARTITION, RESTORING]}],
}  # fmt: skip


def test_the_lag_report_shows_position_lag_and_marks_of_every_partition() -> None:
    running, restoring = next(part for part in lag_page(REPORT) if isinstance(part, Sheet)).rows
    assert running == (
        "op0", "0", "active", "RUNNING", "5/6", "1", "12 ms", "2026-11-20T11:00:03Z", "stale-snapshot"
    )  # fmt: skip
    assert restoring == ("op0", "1", "active", "RESTORING", "-", "unknown", "unknown", "-", "")


def test_the_lag_report_says_that_the_end_is_not_confirmed_and_what_went_wrong_where() -> None:
    header, footer = [part.lines for part in lag_page(REPORT) if isinstance(part, Lines)]
    assert header[0] == "flights: query unknown, a batch is in progress, end 6 (not confirmed), last batch 5"
    assert "8 partitions" in header[1]
    assert list(footer) == ["", "error: op0 partition 1: torn\\u000afile", "hint: use RocksDB"]


def test_a_store_without_key_columns_says_so() -> None:
    store = {
        "store": "op1", "operator": "stateStoreSave", "operator_id": 1, "key": [], "partitions": 1,
        "value": [{"name": "count", "type": "long", "nullable": False}], "end_offset_position": 6,
        "application_id": "flights", "lineage": "l",
    }  # fmt: skip
    assert store_row(store) == ("op1", "stateStoreSave", "(no columns)", "count long", "1", "6")
    assert ("key", "(no columns)", "") in store_fields(store)
    assert ("result", "not known: what Spark stores is shown", "") in store_fields(store)
    assert ("value", "count", "long, never null") in store_fields(store)


def test_the_user_key_of_a_map_is_told_apart_from_its_key() -> None:
    column = {"type": "string", "example": "text"}
    store = {
        "store": "places", "operator": "transformWithStateInPySparkExec", "operator_id": 0, "partitions": 1,
        "key": [{"name": "who", **column}], "user_key": [{"name": "place", **column}],
        "value": [{"name": "visits", "type": "long", "nullable": True}], "end_offset_position": 6,
        "application_id": "flights", "lineage": "l",
    }  # fmt: skip
    rows = store_fields(store)
    keys = [("key", "who", 'string, for example "text"'), ("user key", "place", 'string, for example "text"')]
    assert [row for row in rows if row[0] in {"key", "user key"}] == keys


def test_a_store_with_several_schemas_shows_the_columns_of_each() -> None:
    columns = [{"name": "n", "type": "int", "nullable": True}, {"name": "s", "type": "string", "nullable": True}]
    schemas = [
        {"schema_id": 0, "from_batch": None, "key": [], "value": columns[:1]},
        {"schema_id": 1, "from_batch": 7, "key": [], "value": columns},
    ]
    store = {
        "store": "seen", "operator": "transformWithStateExec", "operator_id": 0, "key": [], "partitions": 1,
        "value": columns, "end_offset_position": 9, "application_id": "flights", "lineage": "l", "schemas": schemas,
    }  # fmt: skip
    rows = store_fields(store)
    at = rows.index(("schemas", "0", "n int"))
    assert rows[at + 1] == ("", "1 from batch 7", "n int, s string")
    assert "schemas" not in [row[0] for row in store_fields({**store, "schemas": schemas[:1]})]


def test_a_stores_results_stand_before_what_spark_stores_with_their_types() -> None:
    store = {
        "store": "a", "operator": "stateStoreSave", "operator_id": 1, "partitions": 1, "application_id": "flights",
        "key": [{"name": "k", "type": "string", "example": "text"}], "lineage": "l", "end_offset_position": 6,
        "value": [{"name": "sum", "type": "double", "nullable": True}, {"name": "n", "type": "long", "nullable": True}],
        "result": [{"name": "mean", "type": "double"}], "unnamed": ["first"],
    }  # fmt: skip
    assert store_row(store)[3] == "mean double"
    sections = [row[0] for row in store_fields(store) if row[0]]
    assert sections[:5] == ["store", "operator", "key", "result", "value"]
    assert ("result", "mean", "double") in store_fields(store)
    assert ("no result", "first", "") in store_fields(store)
    others: list[dict[str, object]] = [{"store": "b\n", "unnamed": ["x", "y"]}, {"store": "c"}]
    assert unnamed_lines([store, *others]) == ["no result: a: first", "no result: b\\u000a: x, y"]


def test_an_operator_that_is_not_served_is_listed_with_its_reason() -> None:
    refused = [{"operator_id": 2, "operator": "symmetricHashJoin", "reason": "joins are not read yet"}]
    assert not_served_lines(refused) == ["not served: op2 (symmetricHashJoin): joins are not read yet"]


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
