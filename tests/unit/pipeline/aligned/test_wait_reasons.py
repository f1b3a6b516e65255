"""Waits of a query: the pure decisions, and the planner: when it waits, what it reports, and how the wait ends.

Waits for servers that are away, and for a batch with enough records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.planned_query import NO_OPTIONS, PlannedQuery, Start, ordinals, started_queries
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.batch_plan import (
    NEVER_WAIT,
    InputState,
    PutOff,
    decide_idle,
    is_filling,
    is_waited_for,
    put_off,
)
from understudy_aligned.inputs.records import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
UNKNOWN = InputState(empty=True, lag=None)
STATES = st.builds(InputState, st.booleans(), st.sampled_from([None, 0, 2]), st.booleans())


@pytest.fixture
def start() -> Iterator[Start]:
    with started_queries() as begun:
        yield begun


@pytest.mark.parametrize(
    ("held", "lags", "most", "filling"),
    [
        pytest.param(40, [30, 30], 100, True, id="servers have the rest of a full batch"),
        pytest.param(40, [30, 29], 100, False, id="it would not become full"),
        pytest.param(40, [60, None], 100, True, id="an unknown lag counts nothing"),
        pytest.param(100, [500], 100, False, id="it is full"),
        pytest.param(0, [500], 100, True, id="it has not begun"),
        pytest.param(40, [500], -1, False, id="a batch without a bound is never full"),
    ],
)
def test_a_batch_is_filled_only_by_records_that_servers_are_known_to_have(
    held: int, lags: list[int | None], most: int, filling: bool
) -> None:
    assert is_filling(held, lags, full=most) is filling


@pytest.mark.parametrize(
    ("inputs", "idle_ms", "is_waited"),
    [
        pytest.param({}, NEVER_WAIT, True, id="nothing is read before all partitions are known"),
        pytest.param({A: UNKNOWN, B: UNKNOWN}, 0, True, id="its next record may be the next of all"),
        pytest.param({A: UNKNOWN, B: UNKNOWN}, NEVER_WAIT, False, id="at -1 nobody is waited for"),
        pytest.param({A: UNKNOWN._replace(empty=False)}, 0, False, id="there are still records of it"),
        pytest.param({A: UNKNOWN._replace(lag=0)}, 0, False, id="it is known to have no more"),
        pytest.param({A: UNKNOWN._replace(lag=3)}, 0, False, id="it answered: it is slow, and not away"),
        pytest.param({A: UNKNOWN._replace(finished=True)}, 0, False, id="its end is reached"),
        pytest.param({B: UNKNOWN}, 0, False, id="another server is away"),
    ],
)
def test_a_server_is_waited_for_while_its_next_record_may_be_the_next_of_all(
    inputs: Mapping[TopicPartition, InputState], idle_ms: int, is_waited: bool
) -> None:
    assert is_waited_for({"a"}, inputs, max_task_idle_ms=idle_ms) is is_waited


def test_with_bounded_drift_a_server_is_waited_for_while_it_holds_others_back() -> None:
    inputs = {A: UNKNOWN, B: UNKNOWN}
    assert is_waited_for({"a"}, inputs, max_task_idle_ms=0, slowest={A})
    assert not is_waited_for({"a"}, inputs, max_task_idle_ms=0, slowest={B})
    assert not is_waited_for({"a"}, inputs, max_task_idle_ms=0, slowest=frozenset())


@given(inputs=st.dictionaries(st.sampled_from([A, B]), STATES, min_size=1), idle_ms=st.sampled_from([-1, 0, 20]))
def test_a_server_that_is_waited_for_blocks_its_task_for_any_time(
    inputs: Mapping[TopicPartition, InputState], idle_ms: int
) -> None:
    first = decide_idle({}, inputs, max_task_idle_ms=idle_ms, now_ms=0)
    later = decide_idle(first.deadlines, inputs, max_task_idle_ms=idle_ms, now_ms=10**12)
    blocking = {each for each, seen in inputs.items() if seen.empty and each not in later.may_pass}
    unknown = {each for each in blocking if inputs[each].lag is None}
    assert is_waited_for({"a"}, inputs, max_task_idle_ms=idle_ms) == (A in unknown)


def waits(query: PlannedQuery) -> Any:
    return query.planner.snapshot().as_json()["waits-for"]


def away(query: PlannedQuery) -> Any:
    return query.planner.snapshot().as_json()["away"]


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["action"] for record in caplog.records]


def test_a_query_says_once_that_it_waits_and_since_when_and_no_more_once_the_server_is_back(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    well, ill = ScriptedServer({"a": 1}), ScriptedServer({"b": 1}, name="ill")
    query = start(well, ill)
    query.begin()
    query.wait_for_lag(0, "b")
    assert waits(query) == {}
    ill.go_away()
    query.wait_for_lag(None, "b")
    assert query.at_once() is None
    query.clock.advance(700)
    well.put("a", 0, 1)
    query.wait_for_records(1)
    assert query.at_once() is None
    assert waits(query) == {"ill": {"since-ms": 700, "error": "no answer (ill)"}}
    assert actions(caplog) == ["away", "waits-for-input"]
    assert "may be next: no answer (ill)" in caplog.messages[-1]
    ill.fail(None)
    assert ordinals(query.next()) == {A: [0]}
    assert waits(query) == away(query) == {}
    assert actions(caplog) == ["away", "waits-for-input", "back"]


def test_a_server_that_is_away_is_not_waited_for_while_its_records_last_nor_by_who_never_waits(start: Start) -> None:
    for idle_ms, held in ((0, True), (-1, False)):
        well, ill = ScriptedServer({"a": 1}), ScriptedServer({"b": 1}, name="ill")
        query = start(well, ill, options=replace(NO_OPTIONS, max_task_idle_ms=idle_ms))
        query.begin()
        query.wait_for_lag(0, "b")
        if held:
            well.withhold("a", 0)
            well.put("a", 0, 5)
            query.wait_for_lag(1, "a")
            ill.put("b", 0, 1)
            query.wait_for_records(1)
        ill.go_away()
        wait_until(lambda query=query: bool(away(query)), what="the failure")  # type: ignore[misc]
        assert waits(query) == {}
        assert query.planner.snapshot().outages["ill"].waits_ms is None


def test_with_bounded_drift_a_server_that_is_away_is_waited_for_once_the_others_are_so_far_ahead(start: Start) -> None:
    well, ill = ScriptedServer({"a": 1}), ScriptedServer({"b": 1}, name="ill")
    ill.put("b", 0, 100)
    query = start(well, ill, options=replace(NO_OPTIONS, max_drift_ms=30))
    query.until(1)
    ill.go_away()
    query.wait_for_lag(None, "b")
    well.put("a", 0, 130)
    assert ordinals(query.next()) == {A: [0]}
    assert waits(query) == {}
    well.put("a", 0, 131)
    query.wait_for_records(1)
    assert query.at_once() is None
    assert list(waits(query)) == ["ill"]


@pytest.mark.parametrize(
    ("changed", "left_ms"),
    [
        pytest.param({}, 400, id="it has too few, and the delay has not passed"),
        pytest.param({"records": 10}, None, id="it has enough"),
        pytest.param({"records": 0}, None, id="there is no batch"),
        pytest.param({"now_ms": 5_999}, 1, id="the delay counts from the last batch"),
        pytest.param({"now_ms": 6_000}, None, id="the delay has passed"),
        pytest.param({"max_delay_ms": 0}, None, id="there is no delay"),
        pytest.param({"last_ms": None}, None, id="it is the first of a run"),
        pytest.param({"is_full": True}, None, id="memory has no room for more"),
        pytest.param({"min_records": 1}, None, id="every batch has enough"),
    ],
)
def test_a_batch_with_too_few_records_waits_until_the_delay_since_the_last_one_has_passed(
    changed: dict[str, Any], left_ms: float | None
) -> None:
    batch = {"records": 9, "min_records": 10, "max_delay_ms": 1_000, "last_ms": 5_000, "is_full": False}
    found = put_off(**{**batch, "now_ms": 5_600, **changed})
    assert found == (None if left_ms is None else PutOff(9, 10, left_ms))


def test_a_query_waits_for_enough_records_or_for_the_delay_and_says_so(start: Start) -> None:
    def waits_for() -> object:
        return query.planner.snapshot().as_json()["waits-for-records"]

    server = ScriptedServer({"a": 1})
    server.put("a", 0, 1)
    query = start(server, options=replace(NO_OPTIONS, min_poll_records=3, max_trigger_delay_ms=1_000))
    assert ordinals(query.next()) == {A: [0]}, "the first batch of a run waits for nothing"
    assert waits_for() == {}
    server.put("a", 0, 2, 3)
    query.wait_for_records(2)
    query.clock.advance(400)
    assert query.at_once() is None
    assert waits_for() == {"records": 2, "min-poll-records": 3, "left-ms": 600}
    server.put("a", 0, 4)
    assert ordinals(query.next()) == {A: [1, 2, 3]}
    assert waits_for() == {}
    server.put("a", 0, 5)
    query.wait_for_records(1)
    assert query.at_once() is None, "the delay counts from the last batch"
    query.clock.advance(1_000)
    assert ordinals(query.next()) == {A: [4]}


def test_a_query_that_ends_by_itself_leaves_no_batch_out_because_it_has_too_few_records(start: Start) -> None:
    server = ScriptedServer({"a": 1})
    server.put("a", 0, 1, 2, 3)
    query = start(server, options=replace(NO_OPTIONS, min_poll_records=2, max_poll_records=2))
    query.planner.finish_at_current_ends(timeout_ms=1_000)
    assert [ordinals(batch) for batch in query.until(3)] == [{A: [0, 1]}, {A: [2]}]
