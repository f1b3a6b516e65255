"""A topic that was deleted and made anew is noticed however long it is, and never read as if it were the one before."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.planned_query import PATIENCE_MS, Start, ordinals, started_queries
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.open_inputs import made_anew
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import PlannedBatch, Planner
from understudy_aligned.reading import read_task
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS
from understudy_aligned.stream import AlignedStream

A, A1, B = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
GOES_ON = AlignedOptions(inputs=(), topics=(), fail_on_data_loss=False, max_task_idle_ms=-1)
IDS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]))


@pytest.fixture
def start() -> Iterator[Start]:
    with started_queries() as begun:
        yield begun


@pytest.fixture
def server() -> ScriptedServer:
    made = ScriptedServer({"a": 1, "b": 1})
    made.ids = {"a": "first", "b": "only"}
    made.put("a", 0, 10, 20, 30)
    return made


@given(before=IDS, now=IDS)
def test_a_topic_is_another_one_when_both_ids_are_known_and_differ(
    before: Mapping[str, str], now: Mapping[str, str]
) -> None:
    anew = made_anew(before, now)
    assert anew == {topic for topic in before.keys() & now.keys() if before[topic] != now[topic]}
    assert made_anew(now, before) == anew
    assert made_anew(before, {**before, **now}) == anew


def begun_again(query: object, options: AlignedOptions) -> PlannedBatch | None:
    """What another planner makes of the offset at which a query stands."""
    planner = Planner(options, query.clock)  # type: ignore[attr-defined]
    try:
        return planner.plan(query.offset, wait_ms=PATIENCE_MS)  # type: ignore[attr-defined]
    finally:
        planner.stop()


def test_one_that_was_made_anew_while_the_query_was_stopped_and_is_longer_than_the_position_ends_it(
    start: Start, server: ScriptedServer
) -> None:
    query = start(server)
    query.next()
    assert query.offset.topic_ids == {"a": "first", "b": "only"}
    server.make_anew("a", "second")
    server.put("a", 0, *range(100, 150))
    with pytest.raises(DataLostError, match=r"deleted and created again.*: a \(option topics\)"):
        begun_again(query, query.options)


def test_one_that_is_made_anew_while_the_query_runs_ends_it_at_the_next_count(
    start: Start, server: ScriptedServer
) -> None:
    query = start(server)
    query.next()
    server.make_anew("a", "second")
    server.put("a", 0, 1, 2, 3)
    assert query.at_once() is None
    query.clock.advance(COUNT_INTERVAL_MS)
    with pytest.raises(DataLostError, match="created again"):
        query.next()


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "while it is stopped"])
def test_it_is_read_from_its_beginning_where_lost_data_may_be(
    start: Start, server: ScriptedServer, caplog: pytest.LogCaptureFixture, *, runs: bool
) -> None:
    caplog.set_level(logging.WARNING)
    query = start(server, options=GOES_ON)
    query.next()
    server.make_anew("a", "second")
    server.put("a", 0, 5, 6, 7, 8, 9)
    if runs:
        query.clock.advance(COUNT_INTERVAL_MS)
        batch = query.next()
    else:
        found = begun_again(query, query.options)
        assert found is not None
        batch = found
    assert ordinals(batch) == {A: [0, 1, 2, 3, 4]}
    assert batch.end.topic_ids == {"a": "second", "b": "only"}
    assert batch.end.cursors[A] == Cursor("4", 5, 30), "the partition time goes on"
    assert [record.__dict__["action"] for record in caplog.records] == ["data-lost"]


def test_a_batch_over_it_that_is_planned_again_is_the_same_at_once(start: Start, server: ScriptedServer) -> None:
    query = start(server, options=GOES_ON)
    query.next()
    before = query.offset
    server.make_anew("a", "second")
    server.put("a", 0, 5, 6, 7, 8, 9)
    query.clock.advance(COUNT_INTERVAL_MS)
    batch = query.next()
    query.offset = before
    again = query.next()
    assert ordinals(again) == ordinals(batch) == {A: [0, 1, 2, 3, 4]}
    assert again.end.topic_ids == batch.end.topic_ids


def test_every_partition_of_it_begins_anew_also_one_that_has_no_records_yet(start: Start) -> None:
    server = ScriptedServer({"a": 2})
    server.ids = {"a": "first"}
    server.put("a", 0, 10)
    server.put("a", 1, 11, 12)
    query = start(server, options=GOES_ON)
    query.until(3)
    server.make_anew("a", "second")
    server.put("a", 0, 20)
    query.clock.advance(COUNT_INTERVAL_MS)
    assert ordinals(query.next()) == {A: [0]}
    assert query.offset.cursors[A1] == Cursor(time_ms=12)
    server.put("a", 1, 30, 31, 32)
    assert ordinals(query.next()) == {A1: [0, 1, 2]}


def test_a_batch_over_a_topic_that_was_made_anew_is_the_same_when_it_runs_again(
    server: ScriptedServer, tmp_path: Path
) -> None:
    options = replace(GOES_ON, inputs=(server.config,), topics=("a", "b"), spool=tmp_path / "spool", undecodable="keep")
    first = AlignedStream(options)
    start = json.loads(json.dumps(first.latest_offset(first.initial_offset())))
    first.stop()
    server.make_anew("a", "second")
    server.put("a", 0, *range(50, 55))
    second = AlignedStream(options)
    end = json.loads(json.dumps(second.latest_offset(start)))
    second.stop()
    third = AlignedStream(options)
    rows = [row for task in third.tasks(start, end) for batch in read_task(task) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_logged_batch_is_not_read_from_another_topic_of_the_same_name(
    server: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    options = AlignedOptions(
        inputs=(server.config,),
        topics=("a", "b"),
        spool=tmp_path / "spool",
        max_task_idle_ms=-1,
        fail_on_data_loss=fails,
    )
    planned = AlignedStream(options)
    start = planned.initial_offset()
    end = planned.latest_offset(start)
    planned.stop()
    server.make_anew("a", "second")
    server.put("a", 0, 1, 2, 3, 4, 5)
    again = AlignedStream(options)
    if fails:
        with pytest.raises(DataLostError, match="created again"):
            again.tasks(start, end)
    else:
        assert again.tasks(start, end) == []
        assert [record.__dict__["action"] for record in caplog.records] == ["data-lost"]
