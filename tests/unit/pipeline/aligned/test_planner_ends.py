"""How the planner begins, ends by itself, and reports errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.spark.planned_query import PATIENCE_MS, Start, ordinals, started_queries, times
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.protocol import DataLostError, InputError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import Planner
from understudy_shared.base.errors import SettingsError

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LATEST = AlignedOptions(inputs=(), topics=(), starting="latest")


@pytest.fixture
def start() -> Iterator[Start]:
    with started_queries() as begun:
        yield begun


def topics(*names: str) -> ScriptedServer:
    return ScriptedServer(dict.fromkeys(names, 1))


def test_records_of_a_later_partition_that_are_gone_before_they_were_read_are_a_loss(start: Start) -> None:
    server = topics("a")
    server.put("a", 0, 1)
    query = start(server)
    query.next()
    server.put("a", 1, 2, 3)
    server.lose("a", 1, 1)
    server.grow("a", 2)
    later = Planner(query.options, query.clock)
    try:
        with pytest.raises(DataLostError, match="a-1"):
            later.plan(query.offset, wait_ms=PATIENCE_MS)
    finally:
        later.stop()


def test_a_new_query_over_topics_that_do_not_fit_is_refused_and_one_of_which_a_topic_grew_goes_on(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, 1)
    earlier = start(server)
    earlier.next()
    server.grow("b", 4)
    with pytest.raises(SettingsError, match=r"a has 1, b has 4 \(option merge\)\. Set merge to 'global'"):
        start(server)
    server.put("b", 0, 2)
    begun_again = Planner(earlier.options, earlier.clock)
    try:
        batch = begun_again.plan(earlier.offset, wait_ms=PATIENCE_MS)
        assert batch is not None
        assert ordinals(batch) == {B: [0]}
    finally:
        begun_again.stop()
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


def test_lost_data_ends_the_query(start: Start) -> None:
    server = topics("a")
    server.put("a", 0, 1, 2, 3)
    query = start(server)
    query.next()
    server.put("a", 0, 4, 5, 6)
    server.lose("a", 0, 5)
    query.offset = start(server).offset
    query.offset = type(query.offset)(query.offset.fingerprint, {A: Cursor("1", 2, 2)})
    with pytest.raises(DataLostError):
        query.next()


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


@pytest.mark.parametrize("idle_ms", [0, 60_000])
def test_runs_to_the_ends_that_keep_the_order_leave_the_rest_for_the_next_one(start: Start, idle_ms: int) -> None:
    ordered = AlignedOptions(inputs=(), topics=(), available_now="ordered", max_task_idle_ms=idle_ms)
    daily = DailyRun(topics("a", "b"), start, ordered)
    assert daily.run(a=[10, 20, 100], b=[15, 50]) == [10, 15, 20, 50]
    assert daily.run(b=[60, 200]) == [60, 100]
    assert daily.run() == []
    assert daily.run(a=[300]) == [200]
    assert daily.seen == sorted(daily.seen)
    assert daily.query.offset.enforced == 0


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(days=st.lists(st.tuples(*2 * [st.lists(st.integers(1, 9), max_size=4)]), min_size=1, max_size=4))
def test_however_records_are_spread_over_days_runs_that_keep_the_order_have_one_order(
    start: Start, days: list[tuple[list[int], list[int]]]
) -> None:
    """Steps in time, so that no record is late within its own partition; ties go to a."""
    ordered = AlignedOptions(inputs=(), topics=(), available_now="ordered")
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
