"""The thread of one server: its requests, and how it handles answers, failures and the end. Mostly turn by turn."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from tests.support.spark.prefetch_bench import Bench
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import Cursor, TopicPartition, record_size
from understudy_aligned.options import AlignedOptions
from understudy_aligned.read_ahead import Lag
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


def test_partitions_are_asked_for_then_the_position_is_sought_then_records_come() -> None:
    bench = Bench("a", "b")
    bench.server.put("a", 0, 1, 2, 3)
    bench.turns(1)
    assert bench.shared.ahead.tasks == {0: (A, B)}
    bench.turns(1)
    assert bench.server.seeks == [{A: Cursor(), B: Cursor()}]
    bench.turns(1)
    assert (bench.buffered(A), bench.buffered(B)) == (3, 0)


def test_statement_35_each_turn_brings_lags_of_what_it_fetched_and_a_seek_drops_them_all() -> None:
    bench = Bench("a", "b").ready()
    bench.server.withhold("a", 0)
    bench.server.withhold("b", 0)
    bench.server.put("a", 0, 1, 2, 3)
    bench.server.release("a", 0, 2)
    bench.turns(1)
    assert (bench.lag(A), bench.lag(B)) == (Lag(1, 0), Lag(0, 0))
    bench.server.put("b", 0, 1, 2, 3)
    bench.server.release("b", 0, 2)
    bench.turns(1)
    assert (bench.lag(A), bench.lag(B)) == (Lag(1, 0), Lag(1, 0))
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
    assert bench.lag(A) == Lag(40, 0)
    bench.server.put("a", 0, *range(90, 100))
    bench.server.release("a", 0, 5)
    bench.turns(1)
    assert bench.buffered(A) == 5, "and what is held is no lag"
    assert bench.lag(A) == Lag(45, 0)


def test_statement_44_a_partition_that_is_not_fetched_has_a_lag_that_grows_old() -> None:
    options = AlignedOptions(inputs=(), topics=(), max_poll_records=2, lag_max_age_ms=5_000)
    bench = Bench("a", options=options).ready()
    bench.server.withhold("a", 0)
    bench.server.put("a", 0, 1, 2, 3)
    bench.server.release("a", 0, 2)
    bench.turns(1)
    bench.clock.advance(5_000)
    assert bench.shared.next_request(0) is None, "it holds enough"
    assert bench.lag(A) == Lag(1, 5_000)
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
