"""The offset in Spark's log: it round-trips, differs from other sources' offsets, and is bound to its options."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules, ValueSchema
from understudy_aligned.offset import OffsetError, SourceOffset, check_fingerprint, check_replay, fingerprint
from understudy_aligned.options import AlignedOptions

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


def with_schema(content: bytes, file: str = "/schemas/weather.avsc", *, topic: str = "weather") -> dict[str, object]:
    rule = TimestampRule("avro", "/at", ValueSchema(content, file=file))
    found: dict[str, object] = json.loads(
        json.dumps(fingerprint(replace(OPTIONS, timestamp=TimestampRules(own=((topic, rule),)))))
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
