"""The offset in Spark's log: it round-trips, differs from other sources' offsets, and is bound to its options."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.planned_query import Start, logged, ordinals, rows_between
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules, ValueSchema
from understudy_aligned.offset import OffsetError, SourceOffset, check_fingerprint, check_replay, fingerprint
from understudy_aligned.open_inputs import made_anew
from understudy_aligned.options import AlignedOptions
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS
from understudy_aligned.stream import AlignedStream

OPTIONS = AlignedOptions(
    inputs=(ScriptedServer({"weather": 1, "flights": 1}).config,),
    topics=("weather", "flights"),
    kinds=("kafka", "redis"),
)

cursors = st.builds(
    Cursor,
    offset=st.text(max_size=20),
    ordinal=st.integers(0, 2**63 - 1),
    time_ms=st.just(NO_TIME_MS) | st.integers(-(2**60), 2**60),
)
places = st.builds(TopicPartition, topic=st.text(min_size=1, max_size=20), partition=st.integers(0, 10_000))
counts = st.integers(0, 2**63 - 1)
offsets = st.builds(
    SourceOffset,
    fingerprint=st.just(fingerprint(OPTIONS)),
    cursors=st.dictionaries(places, cursors, max_size=8),
    topic_ids=st.dictionaries(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=22), max_size=4),
    ring=counts,
    batches=counts,
    records=counts,
    records_of=st.dictionaries(places, counts, max_size=8),
    bytes=counts,
    enforced=counts,
    undecodable=counts,
    stream_time_ms=st.just(NO_TIME_MS) | st.integers(-(2**60), 2**60),
    begins=st.none() | st.dictionaries(places, cursors, max_size=3),
)


@given(offsets)
def test_an_offset_is_read_back_from_the_log_as_it_was_written(offset: SourceOffset) -> None:
    assert SourceOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(offsets)
def test_equal_offsets_have_equal_text_in_whatever_order_their_cursors_came(offset: SourceOffset) -> None:
    turned = replace(
        offset,
        cursors=dict(reversed(list(offset.cursors.items()))),
        topic_ids=dict(reversed(list(offset.topic_ids.items()))),
        records_of=dict(reversed(list(offset.records_of.items()))),
    )
    assert json.dumps(turned.to_json()) == json.dumps(offset.to_json())


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"logOffset": 3}, "a file source"),
        ({"weather": {"0": 17, "1": 3}}, "Kafka"),
        ({"understudy": 99}, "another release"),
        ({"x": 3}, "some other source"),
        (17, "some other source"),
        ({}, "some other source"),
    ],
)
def test_the_offset_of_another_source_is_refused_and_named(found: object, message: str) -> None:
    with pytest.raises(OffsetError, match=message):
        SourceOffset.from_json(found)


def test_a_damaged_offset_is_distinguished_from_a_foreign_one() -> None:
    whole = SourceOffset({}, {TopicPartition("flights", 0): Cursor("1", 2)}).to_json()
    for name in whole.keys() - {"understudy"}:
        with pytest.raises(OffsetError, match="damaged"):
            SourceOffset.from_json({key: value for key, value in whole.items() if key != name})
    for part in ({"at": {"flights": {"0": ["1"]}}}, {"records_of": {"flights": {"0": None}}}, {"records_of": {"a": 1}}):
        with pytest.raises(OffsetError, match="damaged"):
            SourceOffset.from_json({**whole, **part})


@pytest.mark.parametrize(
    ("changed", "old", "new"),
    [
        ({"topics": ("flights", "weather")}, "kafka:weather,redis:flights", "kafka:flights,redis:weather"),
        ({"kinds": ("redis", "redis")}, "kafka:weather", "redis:weather"),
        ({"topics": ("weather",), "kinds": ("kafka",)}, "kafka:weather,redis:flights", "kafka:weather"),
        ({"merge": "global"}, "task", "global"),
        ({"timestamp": TimestampRules(TimestampRule("json", "at"))}, "record", "json:at"),
        ({"max_timestamp_jump_ms": 5}, "not set", "'5'"),
    ],
    ids=["topic order", "kind", "topic left out", "merge", "timestamp", "jump"],
)
def test_options_that_decide_the_order_cannot_change_under_a_checkpoint(
    changed: dict[str, object], old: str, new: str
) -> None:
    now = fingerprint(replace(OPTIONS, **changed))  # type: ignore[arg-type]
    with pytest.raises(OffsetError) as refused:
        check_fingerprint(fingerprint(OPTIONS), now)
    name = "topics" if "kinds" in changed else next(iter(changed))
    assert f"option {name}" in str(refused.value)
    assert old in refused.value.what
    assert new in refused.value.what


@pytest.mark.parametrize(
    "changed",
    [
        {"topics": ("weather", "flights", "alerts"), "kinds": ("kafka", "redis", "redis")},
        {"max_task_idle_ms": 7, "max_poll_records": 7, "input_buffer_max_bytes": 7},
        {"undecodable": "skip", "fail_on_data_loss": False, "starting": "latest"},
        {"reader_tasks": 7, "spool": None},
    ],
    ids=["topics appended", "bounds", "after a failure", "tasks"],
)
def test_options_that_leave_the_order_alone_may_change(changed: dict[str, object]) -> None:
    check_fingerprint(fingerprint(OPTIONS), fingerprint(replace(OPTIONS, **changed)))  # type: ignore[arg-type]


def batch_with_poison(then: dict[str, object], *topics: str) -> tuple[SourceOffset, SourceOffset]:
    """The offsets of a batch that has a record of each topic, two of them without a usable timestamp."""
    cursors = {TopicPartition(topic, 0): Cursor("0", 1) for topic in topics}
    start = SourceOffset(then, {TopicPartition(topic, 0): Cursor() for topic in OPTIONS.topics}, undecodable=3)
    return start, replace(start, cursors={**start.cursors, **cursors}, undecodable=5)


@pytest.mark.parametrize(("before", "now"), [("keep", "skip"), ("skip", "keep"), ("aside", "fail"), ("keep", "fail")])
def test_a_logged_batch_with_poison_has_the_same_rows_again_or_is_refused(before: str, now: str) -> None:
    then, later = (fingerprint(replace(OPTIONS, undecodable=each)) for each in (before, now))  # type: ignore[arg-type]
    start, end = batch_with_poison(then, *OPTIONS.topics)
    check_fingerprint(then, later)
    check_replay(start, start, later)
    check_replay(start, end, then)
    with pytest.raises(OffsetError, match=r"has 2 records without a usable timestamp.*until that batch is committed"):
        check_replay(start, end, later)


def with_schema(content: bytes, file: str = "/schemas/weather.avsc") -> dict[str, object]:
    rule = TimestampRule("avro", "/at", ValueSchema(content, file=file))
    found: dict[str, object] = json.loads(
        json.dumps(fingerprint(replace(OPTIONS, timestamp=TimestampRules(own=(("weather", rule),)))))
    )
    return found


def test_a_logged_batch_is_refused_when_the_schema_of_one_of_its_topics_changed() -> None:
    weather, flights = OPTIONS.topics
    then, later = with_schema(b"old"), with_schema(b"new")
    check_fingerprint(then, later)
    batch = batch_with_poison(then, weather)
    check_replay(*batch, then)
    check_replay(*batch, with_schema(b"old", "/elsewhere/weather.avsc"))
    check_replay(*batch_with_poison(then, flights), later)
    hashes = [sha256(each).hexdigest() for each in (b"old", b"new")]
    with pytest.raises(
        OffsetError, match=rf"(?s)/schemas/weather.avsc of the topic 'weather'.*was {hashes[0]}, and is {hashes[1]} now"
    ) as refused:
        check_replay(*batch, later)
    assert "Put the former file back" in str(refused.value)


def test_a_logged_batch_with_poison_is_refused_when_the_treatment_of_one_of_its_topics_changes() -> None:
    weather, flights = OPTIONS.topics
    then, same, later = (
        fingerprint(replace(OPTIONS, undecodable="skip", topic_undecodable={weather: each}))
        for each in ("partition-time", "partition-time", "aside")
    )
    assert later == fingerprint(replace(OPTIONS, undecodable="skip"))
    check_replay(*batch_with_poison(then, weather), same)
    check_replay(*batch_with_poison(then, flights), later)
    with pytest.raises(OffsetError, match=f"was 'skip,{weather}:partition-time' when it was planned and is 'skip' now"):
        check_replay(*batch_with_poison(then, weather), later)


A, A1, B = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
GOES_ON = AlignedOptions(inputs=(), topics=(), fail_on_data_loss=False, max_task_idle_ms=-1)
IDS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]))


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


def test_one_that_was_made_anew_while_the_query_was_stopped_and_is_longer_than_the_position_ends_it(
    start: Start, server: ScriptedServer
) -> None:
    query = start(server)
    query.next()
    assert query.offset.topic_ids == {"a": "first", "b": "only"}
    server.make_anew("a", "second")
    server.put("a", 0, *range(100, 150))
    with pytest.raises(DataLostError, match=r"deleted and created again.*: a \(option topics\)"):
        query.begun_again()


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
    batch = query.next() if runs else query.begun_again()
    assert batch is not None
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
    start = logged(first.latest_offset(first.initial_offset()))
    first.stop()
    server.make_anew("a", "second")
    server.put("a", 0, *range(50, 55))
    second = AlignedStream(options)
    end = logged(second.latest_offset(start))
    second.stop()
    third = AlignedStream(options)
    assert [row["offset"] for row in rows_between(third, start, end)] == ["0", "1", "2", "3", "4"]


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
