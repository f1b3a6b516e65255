"""Topics that a pattern finds while a query runs, and partitions that are assigned, over a scripted server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.planned_query import PATIENCE_MS, PlannedQuery, Start, logged, ordinals, rows_between
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.kafka_topics import TopicsPattern
from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules
from understudy_aligned.offset import OffsetError, SourceOffset, check_still_read, join_topics
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import Planner
from understudy_aligned.rows import UndecodableError
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS
from understudy_aligned.stream import AlignedStream, Json

FOUND = AlignedOptions(inputs=(), topics=(), pattern=TopicsPattern(""))
A, A1, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("c", 0)
COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 3))


@given(turns=st.lists(COUNTS), is_global=st.booleans())
def test_topics_are_only_appended_and_each_one_that_exists_is_read_or_waits(
    turns: list[dict[str, int]], *, is_global: bool
) -> None:
    topics: list[str] = []
    for counts in turns:
        before = list(topics)
        joined, waiting = join_topics(topics, counts, is_global=is_global)
        topics += joined
        assert topics[: len(before)] == before
        assert list(joined) == sorted(joined)
        assert len(set(topics)) == len(topics)
        assert counts.keys() <= set(topics) | waiting.keys()
        assert not set(topics) & waiting.keys()
        assert not (is_global and waiting)
        if not is_global and joined:
            tasks = min(counts[topic] for topic in topics if topic in counts)
            assert {counts[topic] for topic in joined} == {tasks}
            assert all(count != tasks for count in waiting.values())


def topics_of(offset: SourceOffset) -> object:
    return offset.fingerprint["topics"]


def counted(query: PlannedQuery) -> None:
    """The partitions are due to be counted again."""
    query.clock.advance(COUNT_INTERVAL_MS)


def test_a_topic_that_does_not_fit_waits_is_named_with_the_reason_and_is_read_whole_once_it_fits(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = ScriptedServer({"a": 2})
    server.put("a", 0, 1)
    query = start(server, options=FOUND)
    query.next()
    server.grow("b", 1)
    server.put("b", 0, 7)
    for _ in range(2):
        counted(query)
        wait_until(lambda: bool(query.planner.snapshot().waiting), what="the topic that waits")
        assert query.at_once() is None
    progress = query.planner.snapshot().as_json()
    assert progress["unread-topics"] == {"b": "it has 1 partitions, and not as many as the topics that are read"}
    assert progress["unread-partitions"] == ["b-0"]
    assert [record.__dict__["action"] for record in caplog.records] == ["uneven-topics"], "said once"
    server.grow("b", 2)
    counted(query)
    assert ordinals(query.next()) == {B: [0]}
    assert query.planner.snapshot().as_json()["unread-topics"] == {}


def test_a_query_that_finds_no_topic_waits_and_ends_at_once_where_it_ends_by_itself(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = ScriptedServer({})
    query = start(server, options=FOUND)
    assert query.planner.plan_patiently(query.offset, wait_ms=PATIENCE_MS / 1000, limit_ms=PATIENCE_MS) is None
    wait_until(lambda: not query.planner.snapshot().starting, what="the answer")
    assert query.planner.snapshot().as_json()["topics"] == []
    assert [record.__dict__["action"] for record in caplog.records] == ["no-topics"]
    server.grow("a", 1)
    server.put("a", 0, 1)
    counted(query)
    assert ordinals(query.next()) == {A: [0]}
    ending = start(ScriptedServer({}), options=FOUND)
    ending.planner.finish_at_current_ends(timeout_ms=1_000)
    assert ending.at_once() is None


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "while it is stopped"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_deleted_is_lost_data(
    start: Start, caplog: pytest.LogCaptureFixture, *, fails: bool, runs: bool
) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, 1)
    server.put("b", 0, 2)
    query = start(server, options=replace(FOUND, fail_on_data_loss=fails))
    query.until(2)
    planner = query.planner
    if not runs:
        planner.stop()
        planner = Planner(query.options, query.clock)
    server.delete("a")
    server.put("b", 0, 3)
    counted(query)
    try:
        if fails:
            with pytest.raises(DataLostError, match="do not exist any more: a-0"):
                wait_until(lambda: planner.plan(query.offset) is None and False, what="the loss")
        else:
            batch = planner.plan(query.offset, wait_ms=PATIENCE_MS)
            assert batch is not None
            assert ordinals(batch) == {B: [1]}
            assert topics_of(batch.end) == ["kafka:a", "kafka:b"], "ranks stay"
            wait_until(lambda: planner.snapshot().losses == 1, what="the loss")
            assert [record.__dict__["action"] for record in caplog.records] == ["data-lost"]
    finally:
        planner.stop()


def rows(stream: AlignedStream, begin: Json, end: Json) -> list[tuple[str, str, int]]:
    found = rows_between(stream, begin, end)
    return [(row["topic"], row["value"].decode(), row["merge_order"]["topic_rank"]) for row in found]


def test_a_logged_batch_reads_the_same_by_its_offset_alone_whatever_topics_appear_later(tmp_path: Path) -> None:
    server = ScriptedServer({"b": 1, "c": 1})
    for topic in ("b", "c"):
        server.put(topic, 0, 5, 5)
    options = replace(FOUND, inputs=(server.config,), spool=tmp_path / "spool")
    planned = AlignedStream(options)
    begin = logged(planned.initial_offset())
    end = logged(planned.latest_offset(begin))
    found = rows(planned, begin, end)
    planned.stop()
    assert [(topic, rank) for topic, _, rank in found] == [("b", 0), ("b", 0), ("c", 1), ("c", 1)]
    server.grow("a", 1)
    server.put("a", 0, 1)
    assert rows(AlignedStream(options), begin, end) == found


@pytest.mark.parametrize("fails", [True, False])
def test_a_logged_batch_of_a_topic_that_was_deleted_is_lost_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    server = ScriptedServer({"b": 1})
    server.put("b", 0, 5)
    options = replace(FOUND, inputs=(server.config,), spool=tmp_path / "spool", fail_on_data_loss=fails)
    planned = AlignedStream(options)
    begin = planned.initial_offset()
    end = planned.latest_offset(begin)
    planned.stop()
    server.delete("b")
    again = AlignedStream(options)
    if fails:
        with pytest.raises(DataLostError, match="topics were deleted: b"):
            again.tasks(begin, end)
    else:
        assert again.tasks(begin, end) == []
        assert [record.__dict__["action"] for record in caplog.records] == ["data-lost"]


def with_pattern(text: str) -> AlignedOptions:
    return replace(FOUND, pattern=TopicsPattern(text))


def test_another_pattern_may_find_more_and_must_find_what_was_read() -> None:
    offset = SourceOffset({"topics": ["kafka:flights", "kafka:weather"]})
    check_still_read(with_pattern("."), offset)
    check_still_read(with_pattern("flights|weather|alerts"), offset)
    with pytest.raises(OffsetError, match=r"pattern leaves out what this query has read: kafka:weather \(option"):
        check_still_read(with_pattern("flights"), offset)
    with pytest.raises(OffsetError, match="leaves out what this query has read: redis:flights"):
        check_still_read(with_pattern("."), SourceOffset({"topics": ["redis:flights"]}))


def test_a_checkpoint_goes_on_with_a_pattern_where_it_named_topics_and_the_other_way_round(tmp_path: Path) -> None:
    server = ScriptedServer({"b": 1, "a": 1})
    for topic in ("a", "b"):
        server.put(topic, 0, 5)
    found = replace(FOUND, inputs=(server.config,), spool=tmp_path / "spool")
    named = replace(found, pattern=None, topics=("b", "a"), kinds=("kafka", "kafka"))
    for first, second in ((named, found), (found, replace(named, topics=("a", "b")))):
        stream = AlignedStream(first)
        begin = logged(stream.initial_offset())
        end = logged(stream.latest_offset(begin))
        stream.stop()
        again = AlignedStream(second)
        assert rows(again, begin, end) == rows(AlignedStream(first), begin, end)
        again.stop()


def test_a_topic_that_was_found_and_whose_records_ended_the_query_may_get_timestamps_of_its_own(
    tmp_path: Path,
) -> None:
    server = ScriptedServer({"a": 1})
    server.put("a", 0, 5)
    options = replace(FOUND, inputs=(server.config,), spool=tmp_path / "spool")
    stream = AlignedStream(options)
    end = logged(stream.latest_offset(stream.initial_offset()))
    server.grow("b", 1)
    server.put("b", 0, None)
    stream.stop()
    again = AlignedStream(options)
    with pytest.raises(UndecodableError, match="topic b, partition 0, offset 0"):
        again.latest_offset(end)
    again.stop()
    own = TimestampRules(TimestampRule(), (("b", TimestampRule("json", "at")),))
    mended = AlignedStream(replace(options, timestamp=own))
    server.make_anew("b", "1")
    server.put("b", 0, 7)
    assert SourceOffset.from_json(mended.latest_offset(end)).fingerprint["timestamp"] == "record,b:json:at"
    mended.stop()


def assigned(*partitions: TopicPartition, topics: tuple[str, ...] = ("a", "b")) -> Mapping[str, object]:
    return {"topics": topics, "assigned": frozenset(partitions)}


def test_only_assigned_partitions_are_read_and_those_of_a_number_are_one_task(tmp_path: Path) -> None:
    server = ScriptedServer({"a": 2, "b": 3})
    for topic, count in server.topics.items():
        for partition in range(count):
            server.put(topic, partition, 5)
    options = replace(FOUND, inputs=(server.config,), pattern=None, **assigned(A, A1, B))  # type: ignore[arg-type]
    query = PlannedQuery(server, options=options)
    try:
        query.until(3)
        assert query.offset.cursors.keys() == {A, A1, B}
        assert query.planner._shared.ahead.tasks == {0: (A, B), 1: (A1,)}
        assert query.planner.snapshot().unread == []
        server.put("b", 1, 6)
        assert query.at_once() is None
    finally:
        query.planner.stop()


def test_partitions_may_be_added_to_the_assigned_ones_and_none_that_was_read_left_out() -> None:
    offset = SourceOffset({}, {A: Cursor("3", 4), B: Cursor("3", 4)})
    options = replace(FOUND, pattern=None)
    check_still_read(options, offset)
    check_still_read(replace(options, **assigned(A, A1, B)), offset)  # type: ignore[arg-type]
    with pytest.raises(OffsetError, match=r"assign leaves out what this query has read: b-0 \(option assign\)"):
        check_still_read(replace(options, **assigned(A, A1)), offset)  # type: ignore[arg-type]
