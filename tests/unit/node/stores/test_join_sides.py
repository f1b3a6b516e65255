"""A side of a join gives all rows of a key in Spark's order, or says that the state is damaged; never some of them."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.shown import pages_of, shown

from understudy_node.engine.view import StateTable
from understudy_node.replica.task_view import TaskView
from understudy_node.stores import finder as finders
from understudy_node.stores.operator_state import JoinSide, SideTables, TimedJoinSide, row_printer
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.reads.bounds import EVERYTHING
from understudy_shared.spark.types import BooleanType, Field, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

KEY = StructType((Field("field0", StringType()), Field("field1", LongType())))
INDEXED = StructType((*KEY.fields, Field("index", LongType())))
COUNT = StructType((Field("value", LongType()),))
ROW = StructType((Field("matched", LongType()), Field("matched", BooleanType())))
"""The query has a column of that name, too."""
encode_key, encode_indexed = compile_row_encoder(KEY), compile_row_encoder(INDEXED)
encode_count, encode_row = compile_row_encoder(COUNT), compile_row_encoder(ROW)
COUNTS, ROWS = "left-keyToNumValues", "left-keyWithIndexToValue"
PREFIXES = pytest.mark.parametrize("prefix", [b"", b"\x00"], ids=["hdfs", "rocksdb"])
KEYS = st.tuples(st.none() | st.text("ab", max_size=12), st.none() | st.integers(-2, 2))
Rows = dict[tuple[str | None, int | None], list[tuple[int, bool]]]


def side(prefix: bytes) -> JoinSide:
    tables = SideTables(StateTable(COUNTS), StateTable(ROWS), KEY, INDEXED, COUNT)
    return JoinSide(tables, row_printer(ROW, ("matched",), None), prefix)


def state(rows: Rows, prefix: bytes) -> tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]:
    """The two tables as Spark writes them."""
    counts = {prefix + encode_key(key): prefix + encode_count((len(found),)) for key, found in rows.items()}
    indexed = {
        prefix + encode_indexed((*key, index)): prefix + encode_row(row)
        for key, found in rows.items()
        for index, row in enumerate(found)
    }
    return dict(counts), dict(indexed)


def view(counts: dict[bytes, bytes | None], rows: dict[bytes, bytes | None]) -> TaskView:
    return shown(left__keyToNumValues=counts, left__keyWithIndexToValue=rows)


def found_by(prefix: bytes, shown_now: TaskView, key: tuple[str | None, int | None]) -> object:
    found = side(prefix).find(shown_now, prefix + encode_key(key), EVERYTHING)
    return None if found is None else json.loads(b"{" + found.members.removesuffix(b",") + b"}")["rows"]


@PREFIXES
@given(
    rows=st.dictionaries(
        KEYS, st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=5), max_size=5
    ),
    asked=KEYS,
)
def test_a_key_has_its_rows_in_order_each_with_its_match(
    prefix: bytes, rows: Rows, asked: tuple[str | None, int | None]
) -> None:
    shown_now = view(*state(rows, prefix))
    for key in {asked, *rows}:
        expected = [
            {"value": {"matched": number}, "matched": matched, "expired": None} for number, matched in rows.get(key, [])
        ]
        assert found_by(prefix, shown_now, key) == (expected or None)


@PREFIXES
def test_a_row_that_is_missing_is_damage_and_the_others_are_not_given(prefix: bytes) -> None:
    counts, rows = state({("a", 1): [(1, True), (2, False), (3, True)]}, prefix)
    del rows[prefix + encode_indexed(("a", 1, 1))]
    with pytest.raises(CorruptFileError, match="row 1 of 3"):
        found_by(prefix, view(counts, rows), ("a", 1))


@PREFIXES
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=9),
    limit=st.integers(1, 10),
    long=st.sampled_from([0, 100, 10**6]),
)
def test_the_pages_of_a_key_are_its_rows_each_once(
    prefix: bytes, rows: list[tuple[int, bool]], limit: int, long: int
) -> None:
    """`long`: most bytes of a page; 0 allows one row, however long it is."""
    shown_now = view(*state({("a", 1): rows}, prefix))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finders, "MAX_PAGE_BYTES", long)
        pages = list(pages_of(side(prefix), shown_now, prefix + encode_key(("a", 1)), limit, member="rows"))
    assert [row for page in pages for row in page] == [
        {"value": {"matched": number}, "matched": matched, "expired": None} for number, matched in rows
    ]
    assert all(0 < len(page) <= limit for page in pages)
    if long == 10**6:
        assert len(pages) == -(-len(rows) // limit)


def test_tables_that_are_column_families_are_told_apart_by_the_ids_that_the_snapshot_says() -> None:
    counts, rows = state({("a", 1): [(5, False), (6, True)]}, b"\x00")
    together = {b"\x07\x00" + key: value for key, value in counts.items()}
    together |= {b"\x03\x00" + key: value for key, value in rows.items()}
    tables = SideTables(StateTable("default", COUNTS), StateTable("default", ROWS), KEY, INDEXED, COUNT)
    known = JoinSide(tables, row_printer(ROW, ("n",), None), b"\x00")
    view_now = shown(together, families={COUNTS: 7, ROWS: 3, "right-keyToNumValues": 4})
    key = b"\x00" + encode_key(("a", 1))
    found = known.find(view_now, key, EVERYTHING)
    assert found is not None
    assert json.loads(b"{" + found.members[:-1] + b"}")["rows"] == [
        {"value": {"n": 5}, "matched": False, "expired": None},
        {"value": {"n": 6}, "matched": True, "expired": None},
    ]
    assert known.first_bytes(view_now) == b"\x07\x00"
    assert known.key_row(b"\x07\x00" + key) == encode_key(("a", 1))
    with pytest.raises(CorruptFileError, match="no column family left-keyToNumValues"):
        known.find(shown(together, families={ROWS: 3}), key, EVERYTHING)


TIMES = st.integers(-(2**62), 2**62)


@given(
    rows=st.dictionaries(
        KEYS,
        st.dictionaries(
            TIMES, st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=3), max_size=3
        ),
        max_size=4,
    ),
    asked=KEYS,
)
def test_rows_that_are_kept_by_their_event_time_are_given_by_it(
    rows: dict[tuple[str | None, int | None], dict[int, list[tuple[int, bool]]]], asked: tuple[str | None, int | None]
) -> None:
    finder = TimedJoinSide(
        StateTable("default", "left-keyWithTsToValues"), None, row_printer(ROW, ("matched",), None), b"\x00"
    )
    records = {
        timed_key(key, at): b"".join(struct.pack("<i", len(row) + 1) + b"\x00" + row for row in map(encode_row, found))
        for key, times in rows.items()
        for at, found in times.items()
    }
    shown_now = shown(dict(records), families={"left-keyWithTsToValues": 2})
    for key in {asked, *rows}:
        found = finder.find(shown_now, b"\x00" + encode_key(key), EVERYTHING)
        expected = [
            {"value": {"matched": number}, "matched": matched, "expired": None}
            for _, listed in sorted(rows.get(key, {}).items())
            for number, matched in listed
        ]
        assert (None if found is None else json.loads(b"{" + found.members[:-1] + b"}")["rows"]) == (expected or None)
    for kept in records:
        assert finder.key_row(kept) in set(map(encode_key, rows))


def timed_key(key: tuple[str | None, int | None], at: int) -> bytes:
    return b"\x02\x00\x00" + encode_key(key) + struct.pack(">Q", (at & (2**64 - 1)) ^ 2**63)


LISTED = struct.pack("<i", len(encode_row((1, True))) + 1) + b"\x00" + encode_row((1, True))


@pytest.mark.parametrize(
    "records",
    [{timed_key(("a", 1), 5): LISTED[:-1]}, {timed_key(("a", 1), 5)[:-1]: LISTED}],
    ids=["a list that is cut", "a key without its time"],
)
def test_a_side_by_event_time_whose_records_are_damaged_gives_none_of_them(records: dict[bytes, bytes]) -> None:
    finder = TimedJoinSide(
        StateTable("default", "left-keyWithTsToValues"), None, row_printer(ROW, ("n",), None), b"\x00"
    )
    with pytest.raises(CorruptFileError):
        finder.find(
            shown(dict(records), families={"left-keyWithTsToValues": 2}), b"\x00" + encode_key(("a", 1)), EVERYTHING
        )
