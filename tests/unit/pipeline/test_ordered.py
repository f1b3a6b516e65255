"""An ordered processor's rows come in merge order, however Spark hands them over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues
from pyspark.sql.streaming.tws_tester import TwsTester

from understudy_aligned.ordered import NoMergeOrderError, OrderedProcessor, merge_place

Place = tuple[int, int, int, int, int]

few = st.integers(0, 3)
places = st.lists(st.tuples(few, st.integers(-3, 3), few, few, few), min_size=1, max_size=40)


class Recorder(OrderedProcessor):
    """Gives back each row's name with those that came before it, over all batches."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "names string")

    def handle_ordered(self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: TimerValues) -> Iterator[Row]:
        seen = (self._seen.get() or ("",))[0]
        for row in rows:
            seen += row.name
            yield Row(name=row.name, seen=seen)
        self._seen.update((seen,))


class FirstOnly(OrderedProcessor):
    """Looks at the first row only, and says when a timer has fired."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handle_ordered(self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: TimerValues) -> Iterator[Row]:
        now_ms = timer_values.getCurrentProcessingTimeInMs()
        self._handle.registerTimer(now_ms + 1000)
        yield Row(name=next(rows).name, at_ms=now_ms)

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: tuple[Any, ...],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        yield Row(name="timer", at_ms=expiredTimerInfo.getExpiryTimeInMs())


def row(name: str, place: Place, *, as_dict: bool = True) -> Row:
    """As Spark's worker makes it: a struct is a dict there."""
    fields = dict(zip(("batch", "effective_ms", "topic_rank", "partition", "ordinal"), place, strict=True))
    return Row(name=name, merge_order=fields if as_dict else Row(**fields))


@given(places, st.randoms(use_true_random=False))
def test_rows_come_in_merge_order_however_they_were_handed_over(found: list[Place], chance: random.Random) -> None:
    expected = sorted(found)
    chance.shuffle(found)
    rows = [row("", place, as_dict=chance.random() < 0.5) for place in found]
    assert [merge_place(one) for one in sorted(rows, key=merge_place)] == expected


def test_state_goes_on_over_batches_and_each_key_has_its_own() -> None:
    tester = TwsTester(Recorder())
    tester.test("k", [row("b", (1, 2, 0, 0, 1)), row("a", (1, 1, 0, 0, 0))])
    tester.test("other", [row("x", (1, 1, 0, 0, 0))])
    assert [one.seen for one in tester.test("k", [row("d", (1, 4, 0, 0, 3)), row("c", (1, 3, 0, 0, 2))])] == [
        "abc",
        "abcd",
    ]
    assert tester.peekValueState("seen", "other") == ("x",)


def test_rows_may_be_left_unread_and_timers_are_sparks_own() -> None:
    tester = TwsTester(FirstOnly(), timeMode="ProcessingTime")
    out = tester.test("k", [row("b", (1, 2, 0, 0, 0)), row("a", (1, 1, 0, 0, 0))])
    assert out == [Row(name="a", at_ms=0)]
    assert tester.setProcessingTime(1000) == [Row(name="timer", at_ms=1000)]


@pytest.mark.parametrize("broken", [Row(name="a"), Row(name="a", merge_order=None)], ids=["no column", "null"])
def test_a_row_without_its_place_is_refused_with_what_to_do(broken: Row) -> None:
    with pytest.raises(NoMergeOrderError, match=r"no column 'merge_order', .* \(columns name.*keep the column"):
        TwsTester(Recorder()).test("k", [row("a", (1, 1, 0, 0, 0)), broken])
