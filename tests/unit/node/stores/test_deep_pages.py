"""A page far into a long key costs what it shows, whichever kind of state it is of; and the pages are the whole."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpoint.shown import pages_of, shown
from tests.unit.node.stores.test_join_sides import ROW, encode_row, timed_key
from tests.unit.node.stores.test_join_sides import side as join_side
from tests.unit.node.stores.test_join_sides import state as join_state
from tests.unit.node.stores.test_join_sides import view as join_view
from tests.unit.node.stores.test_state_variables import (
    EXPIRING,
    FAMILY,
    NOW_MS,
    PLAIN,
    PREFIX,
    TABLE,
    USER,
    encode_expiring,
    encode_key,
    prefixed,
    printer,
    view,
    wrapped,
)
from tests.unit.node.stores.test_state_variables import KEY as GROUPING_KEY

from understudy_node.engine.view import StateTable, StateView
from understudy_node.replica.task_view import TaskView
from understudy_node.stores import finder as finders
from understudy_node.stores import operator_state, row_forms
from understudy_node.stores.finder import Finder
from understudy_node.stores.operator_state import TimedJoinSide, row_printer
from understudy_node.stores.row_forms import row_form, split_values
from understudy_node.stores.state_variables import ListVariable, MapVariable, Timers
from understudy_shared.spark.store_keys import WHOLE_MAP
from understudy_shared.spark.types import Field, LongType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

KEY = ("a", 1)
OTHERS = (("a", 0), ("a", 2), ("b", 1))
"""Their records lie around those of the key, and are never its own."""
SHARED = "x" * 400
"""Longer than what a cursor carries of a key."""
JOINED = "left-keyWithTsToValues"

Long = tuple[Finder, TaskView, bytes, str]
"""A finder, the version that it finds in, the key as it is stored, and the member that has its elements."""


def expiring(at: int, *, is_expired: bool) -> bytes:
    return PREFIX + encode_expiring(((at,), NOW_MS - 1 if is_expired else NOW_MS + 1))


def many_values(rows: list[bytes]) -> bytes:
    return b"".join(struct.pack("<i", len(row)) + row for row in rows)


def a_list(expired: list[bool]) -> Long:
    rows = [expiring(at, is_expired=each) for at, each in enumerate(expired)]
    kept = {FAMILY + PREFIX + encode_key(key): many_values(rows) for key in (KEY, *OTHERS)}
    return (
        ListVariable(TABLE, printer(EXPIRING), row_form(EXPIRING, PREFIX)),
        view(kept),
        PREFIX + encode_key(KEY),
        "values",
    )


def a_map(expired: list[bool], shared: str = "") -> Long:
    encode_user = wrapped(USER)
    kept = {
        prefixed(key, encode_user((f"{shared}{at:06d}",))): expiring(at, is_expired=each)
        for key in (KEY, *OTHERS)
        for at, each in enumerate(expired)
    }
    finder = MapVariable(TABLE, EXPIRING, ("place",), printer(EXPIRING), row_form(EXPIRING, PREFIX))
    return finder, view(kept), PREFIX + encode_key(KEY) + WHOLE_MAP, "entries"


def a_map_of_long_keys(expired: list[bool]) -> Long:
    return a_map(expired, SHARED)


def a_timed_side(expired: list[bool]) -> Long:
    """Three rows of each time."""
    rows = [PREFIX + encode_row((at, True)) for at in range(len(expired))]
    kept = {
        timed_key(key, at - 5): many_values(rows[at : at + 3])
        for key in (KEY, *OTHERS)
        for at in range(0, len(rows), 3)
    }
    finder = TimedJoinSide(StateTable("default", JOINED), None, row_printer(ROW, ("visits",), None), PREFIX)
    return finder, shown(dict(kept), families={JOINED: 2}), PREFIX + encode_key(KEY), "rows"


def a_side(expired: list[bool]) -> Long:
    rows = [(at, True) for at in range(len(expired))]
    return join_side(PREFIX), join_view(*join_state({KEY: rows}, PREFIX)), PREFIX + encode_key(KEY), "rows"


def some_timers(expired: list[bool]) -> Long:
    encode_time = compile_row_encoder(StructType((Field("expiryTimestampMs", LongType()),)))
    kept = {prefixed(key, PREFIX + encode_time((at,))): b"" for key in (KEY, *OTHERS) for at in range(len(expired))}
    return Timers(TABLE, GROUPING_KEY, row_form(PLAIN, PREFIX)), view(kept), PREFIX + encode_key(KEY), "timers"


KINDS = [a_list, a_map, a_map_of_long_keys, a_timed_side, a_side, some_timers]
FORGETS_EXPIRY = {a_timed_side, a_side, some_timers}


def number_of(element: Any) -> int:
    """The number that an element was made with; of a timer its milliseconds."""
    if isinstance(element, str):
        return int(element[20:23])
    (number,) = element["value"].values()
    assert isinstance(number, int)
    return number


@settings(max_examples=20)
@given(
    expired=st.lists(st.booleans(), min_size=1, max_size=25),
    limit=st.integers(1, 26),
    include_expired=st.booleans(),
    processes=st.integers(1, 3),
    passed_over=st.sampled_from([1, 3, 10_000]),
    left_out=st.sampled_from([1, 10_000]),
)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_pages_in_a_row_are_the_whole(
    make: Any,
    *,
    expired: list[bool],
    limit: int,
    include_expired: bool,
    processes: int,
    passed_over: int,
    left_out: int,
) -> None:
    finder, shown_now, stored, member = make(expired)
    if not include_expired and make not in FORGETS_EXPIRY and all(expired):
        expired = [*expired, False]
        finder, shown_now, stored, member = make(expired)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finders, "MAX_PASSED_OVER", passed_over)
        patch.setattr(finders, "MAX_LEFT_OUT", left_out)
        pages = pages_of(
            finder, shown_now, stored, limit, member=member, include_expired=include_expired, processes=processes
        )
        found = [[number_of(element) for element in page] for page in at_most(pages, 400)]
    whole = [at for at, each in enumerate(expired) if include_expired or make in FORGETS_EXPIRY or not each]
    assert [number for page in found for number in page] == whole
    assert all(len(page) <= limit for page in found)


def at_most(pages: Iterator[list[dict[str, Any]]], count: int) -> Iterator[list[dict[str, Any]]]:
    """The pages, which have to end."""
    for at, page in enumerate(pages):
        assert at < count, "the pages do not end"
        yield page


class Counted:
    """Counts the elements that are visited: records of a scan, and values of a list."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.visited = 0
        for module in (operator_state, row_forms):
            patch.setattr(module, "split_values", self._counted(split_values))
        patch.setattr(StateView, "scan", self._counted(StateView.scan))

    def _counted(self, visit: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def counting(*arguments: Any, **named: Any) -> Iterator[Any]:
            for visited in visit(*arguments, **named):
                self.visited += 1
                yield visited

        return counting

    def by_page(self, pages: Iterator[list[Any]]) -> Iterator[int]:
        """What each page visited."""
        before = 0
        for _ in pages:
            yield self.visited - before
            before = self.visited


PLACED = pytest.mark.parametrize("make", [a_list, a_map, a_timed_side], ids=lambda make: make.__name__)


@PLACED
def test_a_page_visits_what_it_shows_and_not_what_lies_before_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    finder, shown_now, stored, member = make([False] * 600)
    visited = list(Counted(monkeypatch).by_page(pages_of(finder, shown_now, stored, 30, member=member)))
    assert len(visited) == 20
    assert max(visited) <= 30 + 1 + 30 // 3 + 2, "its elements, the next one, and records that have a list"


@PLACED
def test_a_page_whose_place_another_process_knows_visits_a_bounded_number(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finders, "MAX_PASSED_OVER", 60)
    finder, shown_now, stored, member = make([False] * 450)
    pages = pages_of(finder, shown_now, stored, 90, member=member, processes=2)
    visited = list(Counted(monkeypatch).by_page(at_most(pages, 30)))
    assert len(visited) > 5, "some pages only pass over elements"
    assert max(visited) <= (60 + 90 + 2) * 4 // 3 + 2
