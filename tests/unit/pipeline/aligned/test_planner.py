"""The planner over scripted inputs: how it begins, plans batches in order, ends by itself, and reports errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.clock import ManualClock
from tests.support.spark.planned_query import (
    NO_OPTIONS,
    PATIENCE_MS,
    Start,
    ordinals,
    times,
    without_time,
)
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedRecord, ScriptedServer, chunk_of

from understudy_aligned import planner as planner_module
from understudy_aligned.batch_plan import BatchTake, Queue, plan_batch
from understudy_aligned.inputs.protocol import DataLostError, Fetched, InputError
from understudy_aligned.inputs.records import Cursor, TopicPartition, record_size
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import Planner
from understudy_aligned.rows import UndecodableError
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS
from understudy_shared.base.errors import SettingsError, UnderstudyError

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def topics(*names: str, partitions: int = 1) -> ScriptedServer:
    return ScriptedServer(dict.fromkeys(names, partitions))


def options(**changed: object) -> AlignedOptions:
    return replace(NO_OPTIONS, **changed)  # type: ignore[arg-type]


def test_a_batch_is_what_comes_before_the_first_input_runs_out(start: Start) -> None:
    server = topics("a", "b")
    server.put("a", 0, 1, 5, 9)
    server.put("b", 0, 2, 6)
    server.open_transaction("b", 0)
    query = start(server, options=options(max_task_idle_ms=1_000))
    batch = query.next()
    assert times(batch) == [1, 2, 5, 6]
    assert batch.end.cursors == {A: Cursor("1", 2, 5), B: Cursor("1", 2, 6)}
    assert (batch.end.batches, batch.end.records) == (1, 4)
    assert batch.end.bytes == 4 * record_size("a", None, b"")
    assert query.at_once() is None
    server.put("b", 0, 7, 11)
    server.commit("b", 0)
    batch = query.next()
    assert times(batch) == [7, 9]
    assert [span.start for span, _ in batch.ranges] == [Cursor("1", 2, 5), Cursor("1", 2, 6)]


def test_a_batch_names_ranges_that_go_on_where_the_last_ended(start: Start) -> None:
    server = topics("a", "b", partitions=2)
    for topic in ("a", "b"):
        for partition in range(2):
            server.put(topic, partition, *range(100))
    query = start(server, options=options(max_poll_records=7))
    ends: dict[TopicPartition, Cursor] = {}
    seen: dict[TopicPartition, list[int]] = {}
    for batch in query.until(400):
        assert batch.end.records <= 7
        for span, _ in batch.ranges:
            assert span.start == ends.get(span.partition, Cursor())
            ends[span.partition] = span.end
        for place, found in ordinals(batch).items():
            seen.setdefault(place, []).extend(found)
    assert seen == {TopicPartition(topic, p): list(range(100)) for topic in "ab" for p in range(2)}


def test_with_bounded_drift_an_input_goes_on_so_far_without_another_and_again_after_a_restart(start: Start) -> None:
    server = topics("a", "b")
    server.put("a", 0, *range(100, 200, 10))
    server.put("b", 0, 105)
    bounded = options(max_drift_ms=30, max_task_idle_ms=1_000)
    query = start(server, options=bounded)
    assert sorted(at for batch in query.until(5) for at in times(batch)) == [100, 105, 110, 120, 130]
    assert query.offset.enforced >= 3
    again = start(server, options=bounded)
    again.offset = query.offset
    for each in (query, again):
        assert each.at_once() is None, "how far inputs are is in the offset"
        each.wait_for_records(6)
        each.wait_for_lag(0, "b")
        assert each.at_once() is None
        metrics = each.planner.snapshot().as_json()
        assert (metrics["held-back"], metrics["held-back-by"]) == ({"a-0": 35}, ["b-0"])
    server.put("b", 0, 170)
    for each in (query, again):
        assert times(each.next()) == [140, 150, 160, 170, 170, 180, 190]
        assert each.planner.snapshot().as_json()["held-back"] == {}
    assert query.offset == again.offset


def test_the_stream_time_is_the_least_partition_time_of_the_inputs_that_count_and_never_goes_back(
    start: Start,
) -> None:
    server = topics("a", "b", "idle")
    server.put("a", 0, 10, 20, 90)
    server.put("b", 0, 15)
    own = {"idle": 0}
    query = start(server, options=options(max_task_idle_ms=1_000, topic_idle_ms=own))
    assert [at for batch in query.until(2) for at in times(batch)] == [10, 15]
    assert query.offset.stream_time_ms == 10, "b is at 15, and idle was given up on"
    query.wait_for_lag(0, "b")
    assert query.at_once() is None
    query.clock.advance(1_000)
    server.put("a", 0, 95)
    assert 90 in times(query.next())
    assert query.offset.stream_time_ms >= 20, "b does not count any more"
    reached_ms = query.offset.stream_time_ms
    server.put("b", 0, 30)
    query.next()
    assert query.offset.stream_time_ms >= reached_ms


def test_statement_36_nothing_is_planned_behind_a_batch_that_was_not_committed(start: Start) -> None:
    """Spark asks for the next batch with the end of the last one once that is committed, and not before."""
    server = topics("a")
    server.put("a", 0, 1, 2, 3)
    query = start(server, options=options(max_poll_records=2))
    before = query.offset
    planned = query.next()
    again = query.planner.plan(before, wait_ms=PATIENCE_MS)
    assert again is not None
    assert again.end == planned.end
    assert ordinals(again) == ordinals(planned) == {A: [0, 1]}
    assert ordinals(query.next()) == {A: [2]}


def test_statement_37_while_a_task_waits_its_inputs_are_read_and_other_tasks_go_on(start: Start) -> None:
    server = topics("a", "b", partitions=2)
    server.withhold("b", 0)
    server.put("b", 0, 1)
    server.put("a", 0, 1)
    query = start(server)
    query.begin()
    query.wait_for_lag(1, "b")
    before = server.fetches
    wait_until(lambda: server.fetches > before + 3, what="turns")
    assert query.at_once() is None
    server.put("b", 1, 3)
    server.put("a", 1, 3)
    assert set(ordinals(query.next())) <= {TopicPartition("a", 1), TopicPartition("b", 1)}


def test_with_nobody_to_wait_for_a_server_that_hangs_holds_up_only_its_own_topics(start: Start) -> None:
    well, ill = topics("a"), topics("b")
    query = start(well, ill, options=options(max_task_idle_ms=-1))
    query.begin()
    query.wait_for_lag(0, "b")
    ill.hang()
    wait_until(lambda: ill.has_caught, what="the turn that hangs")
    well.put("a", 0, 1, 2)
    assert ordinals(query.next()) == {A: [0, 1]}
    ill.resume()
    assert query.offset.enforced == 0


def test_statement_40_asking_for_the_lag_of_what_is_not_read_is_an_error_and_before_an_answer_unknown(
    start: Start,
) -> None:
    query = start(topics("a"))
    assert query.lag("a") is None
    with pytest.raises(UnderstudyError, match="c-0 is not a partition of this source"):
        query.lag("c")
    query.begin()
    query.wait_for_lag(0, "a")
    with pytest.raises(UnderstudyError, match="a-1 is not a partition of this source"):
        query.lag("a", 1)


def test_statement_41_asking_for_a_lag_asks_no_server(start: Start) -> None:
    server = topics("a")
    query = start(server)
    opened = server.opened
    assert query.lag("a") is None
    assert query.lag("a") is None
    assert (server.opened, server.fetches) == (opened, 0)


@pytest.mark.parametrize("rule", ["keep", "skip", "aside"])
def test_poison_that_is_not_to_fail_is_in_its_batch_and_counted(start: Start, rule: str) -> None:
    server = topics("a")
    server.put("a", 0, 1, None, 3)
    query = start(server, options=options(undecodable=rule))
    assert ordinals(query.next()) == {A: [0, 1, 2]}
    assert query.offset.undecodable == 1
    server.put("a", 0, None)
    query.next()
    assert query.offset.undecodable == 2


@pytest.mark.parametrize(("most", "batches"), [(2, [[1, 2], [4]]), (-1, [[1, 2, 4]])])
def test_poison_ends_the_query_once_everything_before_it_is_in_a_batch(
    start: Start, most: int, batches: list[list[int]]
) -> None:
    server = topics("a", "b")
    server.put("a", 0, 1, 4, None, 9)
    server.put("b", 0, 2, 4, 5, 6)
    query = start(server, options=options(max_poll_records=most))
    seen = [times(query.next()) for _ in batches]
    assert seen == batches, "the record of b at 4 comes after the poison, which has time 4 too"
    with pytest.raises(UndecodableError, match="topic a, partition 0, offset 2"):
        query.next()
    with pytest.raises(UndecodableError, match="undecodable to 'skip'"):
        query.next()
    assert query.offset.undecodable == 0


def test_each_topic_can_treat_its_poison_in_its_own_way(start: Start) -> None:
    server = topics("a", "b", "c")
    server.put("a", 0, 1, None, 9)
    server.put("b", 0, 2, 7, None, 9)
    server.put("c", 0, 3, 8, None, 9)
    own = {"b": "partition-time", "c": "fail"}
    query = start(server, options=options(undecodable="skip", topic_undecodable=own, max_task_idle_ms=1_000))
    seen = [at for batch in query.until(7) for at in times(batch)]
    assert seen == [1, 2, 3, 7, 8], "and before the last of them those of a and b that have no time"
    assert query.offset.undecodable == 2
    with pytest.raises(UndecodableError, match="topic c, partition 0, offset 2"):
        query.next()


def test_new_partitions_join_their_task_and_are_read_from_the_beginning(start: Start) -> None:
    server = topics("a", "b")
    server.put("a", 0, 1)
    query = start(server)
    query.until(1)
    for topic in ("a", "b"):
        server.put(topic, 1, 7)
        server.grow(topic, 2)
    query.clock.advance(COUNT_INTERVAL_MS)
    batches = query.until(2)
    assert {tp: list(found) for batch in batches for tp, found in ordinals(batch).items()} == {
        TopicPartition("a", 1): [0],
        TopicPartition("b", 1): [0],
    }
    assert without_time(query.offset) == {A: "0", TopicPartition("a", 1): "0", TopicPartition("b", 1): "0"}


def test_stopping_ends_every_thread_and_lets_go_of_every_input(start: Start) -> None:
    servers = topics("a"), topics("b")
    query = start(*servers)
    query.begin()
    query.wait_for_lag(0, "b")
    query.planner.stop()
    query.planner.stop()
    assert [server.open_inputs for server in servers] == [0, 0]


def test_only_tasks_that_changed_are_planned_until_one_of_them_has_records_to_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[list[int]] = []

    def noted(tasks: Mapping[int, Sequence[Queue]], *more: object, **named: object) -> BatchTake:
        planned.append(list(tasks))
        return plan_batch(tasks, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(planner_module, "plan_batch", noted)
    planner = Planner(options(topics=("a", "b"), max_task_idle_ms=100), clock := ManualClock())
    ahead, offset = planner._shared.ahead, planner.initial(timeout_ms=0)

    def after(*came: TopicPartition, lags: Mapping[TopicPartition, int] = {}) -> list[list[int]]:
        fetched = Fetched([chunk_of(tp, [ScriptedRecord(7)]) for tp in came], lags)
        now_ms = clock.monotonic_ms()
        ahead.add_fetched(fetched, generation=ahead.generation, asked_ms=now_ms, now_ms=now_ms)
        planned.clear()
        nonlocal offset
        batch = planner.plan(offset, wait_ms=0)
        offset = offset if batch is None else batch.end
        return planned

    planner.plan(offset, wait_ms=0)
    ahead.set_partition_counts({"a": 50, "b": 50})
    every = list(range(50))
    assert after() == [every]
    a, b = ([TopicPartition(topic, p) for p in every] for topic in "ab")
    assert after(a[3], a[9]) == [[3, 9]]
    assert after() == [], "nothing changed"
    assert after(lags={b[3]: 5}) == [[3]], "it has more records"
    assert after(lags={b[3]: 4}) == []
    assert after(lags={b[3]: 0}) == [[3]], "it is waited for from now on"
    clock.advance(99)
    assert after(lags={b[3]: 0}) == []
    clock.advance(1)
    assert after() == [[3], every], "the wait is over, and there is a batch"
    assert after(b[9]) == [every], "behind a batch all tasks may have something left"


LATEST = AlignedOptions(inputs=(), topics=(), starting="latest")


def test_records_of_a_later_partition_that_are_gone_before_they_were_read_are_a_loss(start: Start) -> None:
    server = topics("a")
    server.put("a", 0, 1)
    query = start(server)
    query.next()
    server.put("a", 1, 2, 3)
    server.lose("a", 1, 1)
    server.grow("a", 2)
    with pytest.raises(DataLostError, match="a-1"):
        query.begun_again()


def test_a_new_query_over_topics_that_do_not_fit_is_refused_and_one_of_which_a_topic_grew_goes_on(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, 1)
    earlier = start(server)
    earlier.next()
    server.grow("b", 4)
    with pytest.raises(SettingsError, match=r"a has 1, b has 4 \(option merge\)\. Set merge to 'global'"):
        start(server)
    server.put("b", 0, 2)
    batch = earlier.begun_again()
    assert batch is not None
    assert ordinals(batch) == {B: [0]}
    assert start(server, options=AlignedOptions(inputs=(), topics=(), merge="global")).offset.cursors == {}


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_where_a_new_query_begins_cannot_be_known_from_a_server_that_is_away(
    start: Start, starting: Literal["earliest", "latest"]
) -> None:
    server = topics("a")
    server.go_away()
    with pytest.raises(InputError):
        start(server, options=replace(LATEST, starting=starting))
    assert server.open_inputs == 0


def test_a_server_that_is_away_at_the_start_is_waited_for_and_reported(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    well, ill = topics("a"), topics("b")
    ill.name = "ill"
    well.put("a", 0, 1)
    query = start(well, ill)
    ill.go_away()
    query.begin()
    wait_until(lambda: "ill" in query.planner.snapshot().outages, what="the failure")
    query.clock.advance(9_000)
    assert query.at_once() is None
    away = query.planner.snapshot().outages["ill"]
    assert away.since_ms >= 9_000
    assert "no answer" in away.error
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert [record.__dict__["action"] for record in caplog.records] == ["away", "waits-for-input"]
    ill.fail(None)
    assert ordinals(query.next()) == {A: [0]}
    assert query.planner.snapshot().outages == {}


def test_a_query_that_ends_by_itself_reads_what_there_was_and_nothing_that_came_later(start: Start) -> None:
    server = topics("a", "b")
    server.put("a", 0, *range(50))
    server.put("b", 0, *range(30))
    query = start(server, options=AlignedOptions(inputs=(), topics=(), max_poll_records=7))
    query.planner.finish_at_current_ends(timeout_ms=1_000)
    server.put("a", 0, *range(50, 90))
    server.grow("a", 2)
    server.grow("b", 2)
    seen: list[int] = []
    while (batch := query.at_once()) is not None:
        seen.extend(times(batch))
    assert seen == sorted([*range(50), *range(30)])
    assert query.offset.enforced == 20, "a later query may find more behind the last of b"


class DailyRun:
    """Runs a query to the current ends of its inputs again and again, on one checkpoint."""

    def __init__(self, server: ScriptedServer, start: Start, options: AlignedOptions) -> None:
        self._server, self._start, self._options = server, start, options
        self.seen: list[int] = []
        self.query = start(server, options=options)

    def run(self, **put: Sequence[int]) -> Sequence[int]:
        """What comes out of a run after these records were written."""
        for topic, times_ms in put.items():
            self._server.put(topic, 0, *times_ms)
        query, query.offset = self._start(self._server, options=self._options), self.query.offset
        query.planner.finish_at_current_ends(timeout_ms=1_000)
        found: list[int] = []
        while (batch := query.at_once()) is not None:
            found.extend(times(batch))
        query.planner.stop()
        self.query = query
        self.seen += found
        return found


def test_a_run_that_ends_by_itself_fails_if_a_log_is_shorter_than_what_was_read_of_it(start: Start) -> None:
    server = topics("a", "b")
    daily = DailyRun(server, start, AlignedOptions(inputs=(), topics=()))
    assert daily.run(a=[1, 2, 3], b=[2]) == [1, 2, 2, 3]
    server.truncate("a", 0, 2)
    with pytest.raises(DataLostError, match="a-0"):
        daily.run(b=[4])


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    idle_ms=st.sampled_from([0, 60_000]),
    days=st.lists(st.tuples(*2 * [st.lists(st.integers(1, 9), max_size=4)]), min_size=1, max_size=4),
)
def test_however_records_are_spread_over_days_runs_that_keep_the_order_have_one_order(
    start: Start, idle_ms: int, days: list[tuple[list[int], list[int]]]
) -> None:
    """Steps in time, so that no record is late within its own partition; ties go to a."""
    ordered = AlignedOptions(inputs=(), topics=(), available_now="ordered", max_task_idle_ms=idle_ms)
    daily, logs = DailyRun(topics("a", "b"), start, ordered), ([0], [0])
    for steps in days:
        put: list[list[int]] = []
        for log, of_day in zip(logs, steps, strict=True):
            put.append([(log := [*log, log[-1] + step])[-1] for step in of_day])
        logs[0].extend(put[0])
        logs[1].extend(put[1])
        daily.run(a=put[0], b=put[1])
    every = sorted([*logs[0][1:], *logs[1][1:]])
    assert daily.seen == every[: len(daily.seen)]
    assert daily.query.offset.enforced == 0
    if logs[0][1:] and logs[1][1:]:
        assert len(daily.seen) >= sum(time_ms < min(logs[0][-1], logs[1][-1]) for time_ms in every)


def test_a_run_that_keeps_the_order_ends_although_memory_is_full_before_the_ends(start: Start) -> None:
    server = topics("a", "b")
    server.put("a", 0, *range(50), size=1_000)
    small = AlignedOptions(inputs=(), topics=(), available_now="ordered", input_buffer_max_bytes=1, max_poll_records=5)
    query = start(server, options=small)
    query.planner.finish_at_current_ends(timeout_ms=1_000)
    assert query.at_once() is None, "b may still get a record that comes first"
