"""A thread for each server, and what the query waits for: when it waits, what it reports, and how the wait ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.planned_query import NO_OPTIONS, PlannedQuery, Start, ordinals
from tests.support.spark.prefetch_bench import Bench
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
from understudy_aligned.inputs.protocol import DataLostError, InputError
from understudy_aligned.inputs.records import Cursor, TopicPartition, record_size
from understudy_aligned.open_inputs import OpenInputs
from understudy_aligned.options import AlignedOptions
from understudy_aligned.read_ahead import FetchLag
from understudy_aligned.shared_read_ahead import FIRST_BACKOFF_MS, MAX_BACKOFF_MS, Prefetch

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
PATIENCE_S = 20.0


def ordinal_of_first(bench: Bench) -> int:
    return int(bench.shared.ahead.take({A: 1})[0].rows[0].column("ordinal")[0].as_py())


@pytest.fixture
def started() -> Iterator[list[Prefetch]]:
    """Stopped at the end, whatever happened."""
    running: list[Prefetch] = []
    yield running
    for each in running:
        each.stop()
    for each in running:
        assert each.join(PATIENCE_S)


def test_statement_35_each_turn_brings_lags_of_what_it_fetched_and_a_seek_drops_them_all() -> None:
    bench = Bench("a", "b").ready()
    bench.server.withhold("a", 0)
    bench.server.withhold("b", 0)
    bench.server.put("a", 0, 1, 2, 3)
    bench.server.release("a", 0, 2)
    bench.turns(1)
    assert (bench.lag(A), bench.lag(B)) == (FetchLag(1, 0), FetchLag(0, 0))
    bench.server.put("b", 0, 1, 2, 3)
    bench.server.release("b", 0, 2)
    bench.turns(1)
    assert (bench.lag(A), bench.lag(B)) == (FetchLag(1, 0), FetchLag(1, 0))
    bench.shared.ahead.seek_to({})
    assert (bench.lag(A), bench.lag(B)) == (None, None)


def test_statement_47_nothing_is_fetched_of_an_input_that_holds_a_whole_batch() -> None:
    bench = Bench("a", options=AlignedOptions(inputs=(), topics=(), max_poll_records=5)).ready()
    bench.server.put("a", 0, *range(10))
    bench.turns(1)
    bench.server.put("a", 0, *range(10, 20))
    fetches = bench.server.fetches
    bench.turns(2)
    bench.shared.ahead.take({A: 5})
    bench.turns(2)
    assert (bench.server.fetches, bench.buffered(A)) == (fetches, 5)
    bench.shared.ahead.take({A: 1})
    bench.turns(1)
    assert (bench.server.fetches, bench.buffered(A)) == (fetches + 1, 14)


def test_statement_43_and_45_what_was_handed_over_is_no_lag_and_everything_behind_it_is() -> None:
    bench = Bench("a", options=AlignedOptions(inputs=(), topics=(), max_poll_records=5)).ready()
    bench.server.put("a", 0, *range(50))
    bench.server.put("a", 0, *range(50, 90))
    bench.shared.ahead.seek_to({A: Cursor("49", 50, 49)})
    bench.server.withhold("a", 0)
    bench.turns(2)
    assert bench.lag(A) == FetchLag(40, 0)
    bench.server.put("a", 0, *range(90, 100))
    bench.server.release("a", 0, 5)
    bench.turns(1)
    assert bench.buffered(A) == 5, "and what is held is no lag"
    assert bench.lag(A) == FetchLag(45, 0)


def test_statement_44_a_partition_that_is_not_fetched_has_a_lag_that_grows_old() -> None:
    options = AlignedOptions(inputs=(), topics=(), max_poll_records=2, lag_max_age_ms=5_000)
    bench = Bench("a", options=options).ready()
    bench.server.withhold("a", 0)
    bench.server.put("a", 0, 1, 2, 3)
    bench.server.release("a", 0, 2)
    bench.turns(1)
    bench.clock.advance(5_000)
    assert bench.shared.next_request(0) is None, "it holds enough"
    assert bench.lag(A) == FetchLag(1, 5_000)
    bench.clock.advance(1)
    assert bench.lag(A) is None


def test_a_server_that_is_away_is_asked_less_and_less_often_and_at_once_after_an_answer() -> None:
    bench = Bench("a")
    bench.server.go_away()
    waits = bench.turns(8)
    assert waits[:3] == [FIRST_BACKOFF_MS, 2 * FIRST_BACKOFF_MS, 4 * FIRST_BACKOFF_MS]
    assert waits[-1] == MAX_BACKOFF_MS
    bench.server.fail(None)
    assert bench.turns(3) == [0, 0, 0]
    bench.server.go_away()
    assert bench.turns(1) == [FIRST_BACKOFF_MS]


def test_a_cluster_is_back_when_every_partition_that_is_wanted_brought_something() -> None:
    bench = Bench("a", "b").ready()
    bench.server.go_away()
    bench.turns(1)
    bench.server.fail(None)
    bench.server.reports_lags = False
    bench.server.put("a", 0, 1)
    bench.turns(3)
    assert "scripted" in bench.shared.outages(), "the broker of b may still be dead"
    bench.server.put("b", 0, 1)
    bench.turns(1)
    assert bench.shared.outages() == {}


def test_statement_33_waiting_is_silent_and_going_away_and_coming_back_are_said_once_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench("a")
    bench.server.go_away()
    bench.turns(3)
    bench.clock.advance(700)
    assert bench.shared.outages()["scripted"].since_ms == 700
    bench.server.fail(None)
    bench.turns(3)
    assert bench.shared.outages() == {}
    assert [record.__dict__["action"] for record in caplog.records] == ["away", "back"]


def test_lost_data_ends_it_and_is_kept_for_the_planner(started: list[Prefetch]) -> None:
    bench = Bench("a").ready()
    bench.server.put("a", 0, *range(10))
    bench.shared.ahead.seek_to({A: Cursor("2", 3, 2)})
    bench.server.lose("a", 0, 6)
    bench.prefetch.start()
    started.append(bench.prefetch)
    wait_until(lambda: bench.shared.failure is not None, what="the loss")
    assert isinstance(bench.shared.failure, DataLostError)
    assert bench.prefetch.join(PATIENCE_S)


def test_statement_51_what_was_asked_before_a_seek_is_not_taken_in_after_it(started: list[Prefetch]) -> None:
    bench = Bench("a").ready()
    bench.server.put("a", 0, *range(10))
    bench.server.hang()
    bench.prefetch.start()
    started.append(bench.prefetch)
    wait_until(lambda: bench.server.has_caught, what="the turn that hangs")
    with bench.shared.changed:
        bench.shared.ahead.seek_to({A: Cursor("6", 7, 6)})
    bench.server.resume()
    wait_until(lambda: bench.buffered(A) > 0, what="records")
    with bench.shared.changed:
        assert ordinal_of_first(bench) == 7


def test_statement_58_a_task_over_its_share_goes_on_fetching_what_is_empty() -> None:
    size = record_size("a", None, bytes(100))
    options = AlignedOptions(inputs=(), topics=(), input_buffer_max_bytes=3 * size)
    bench = Bench("a", "b", options=options).ready()
    bench.server.put("a", 0, *range(4), size=100)
    bench.turns(5)
    assert bench.buffered(A) == 4, "one fetch may overshoot"
    assert bench.server.asked == {B}
    bench.shared.ahead.take({A: 1})
    bench.turns(1)
    assert bench.server.asked == {A, B}, "just the bound is not over it"


def test_statement_59_a_partition_that_is_not_wanted_for_another_reason_is_not_resumed_by_memory() -> None:
    """Kafka's first version resumed every paused partition. Here a pause is no state of the input at all."""
    bench = Bench("a", "b", options=AlignedOptions(inputs=(), topics=(), max_poll_records=1)).ready()
    bench.server.put("a", 0, 1, 2)
    bench.turns(2)
    assert bench.shared.ahead.paused() == frozenset()
    assert bench.server.asked == {B}


def test_statement_48_a_fetch_that_takes_long_holds_up_no_plan(started: list[Prefetch]) -> None:
    bench = Bench("a").ready()
    bench.server.hang()
    bench.prefetch.start()
    started.append(bench.prefetch)
    wait_until(lambda: bench.server.has_caught, what="the turn that hangs")
    looked = threading.Event()

    def look() -> None:
        with bench.shared.changed:
            looked.set()

    threading.Thread(target=look, daemon=True).start()
    assert looked.wait(PATIENCE_S)
    bench.server.resume()


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer({"weather": 1})


@pytest.fixture
def inputs(server: ScriptedServer) -> OpenInputs:
    return OpenInputs([server.config])


def test_an_input_that_failed_is_closed_and_the_next_caller_gets_a_new_one(
    server: ScriptedServer, inputs: OpenInputs
) -> None:
    server.fail(InputError("away", where="here", fix="wait"))
    with pytest.raises(InputError), inputs.lend(0) as asked:
        asked.partitions(timeout_ms=1)
    assert server.open_inputs == 0
    with inputs.lend(0) as another:
        assert another is not asked


UNKNOWN = InputState(empty=True, lag=None)
STATES = st.builds(InputState, st.booleans(), st.sampled_from([None, 0, 2]), st.booleans())


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


def test_with_bounded_drift_a_server_is_waited_for_while_it_holds_others_back() -> None:
    inputs = {A: UNKNOWN, B: UNKNOWN}
    assert is_waited_for({"a"}, inputs, max_task_idle_ms=0, slowest={A})
    assert not is_waited_for({"a"}, inputs, max_task_idle_ms=0, slowest={B})
    assert not is_waited_for({"a"}, inputs, max_task_idle_ms=0, slowest=frozenset())


def test_before_all_partitions_are_known_every_server_is_waited_for() -> None:
    assert is_waited_for({"a"}, {}, max_task_idle_ms=NEVER_WAIT)


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
