"""The offset in Spark's log: it round-trips, differs from other sources' offsets, and is bound to its options."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.scripted_input import ScriptedServer

from understudy_pipeline.aligned.fingerprint import check_fingerprint, check_replay, fingerprint
from understudy_pipeline.aligned.offset import OffsetError, SourceOffset
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.subscription import check_still_read, topics_at, with_topics
from understudy_pipeline.inputs.kafka_config import KafkaConfig
from understudy_pipeline.inputs.records import NO_TIME_MS, Cursor, TopicPartition
from understudy_pipeline.inputs.redis_streams import RedisConfig
from understudy_pipeline.inputs.timestamps import TimestampRule, TimestampRules

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


def test_an_offset_takes_few_bytes_per_partition() -> None:
    many = {TopicPartition("flights", p): Cursor("1234567", 1_234_568, 1_700_000_000_000) for p in range(100)}
    offset = SourceOffset({}, many, records_of=dict.fromkeys(many, 10_000))
    assert len(json.dumps(offset.to_json())) < 100 * 65 + 200


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


BEFORE_PATTERNS = """{"understudy": 1, "fingerprint": {"topics": ["kafka:weather", "redis:flights"], "merge": "task",
 "timestamp": "record", "max_timestamp_jump_ms": null, "key_field": null, "value_field": null,
 "kafka.isolation.level": null, "undecodable": "fail"}, "at": {"flights": {"0": ["7-0", 7, null]},
 "weather": {"0": ["3", 4, 50]}}, "ring": 1, "batches": 2, "records": 3, "bytes": 4, "enforced": 5, "undecodable": 6,
 "topic_ids": {"weather": "x"}, "stream_time_ms": 50}"""
"""An offset that was written before there were patterns and assigned partitions."""


def test_an_offset_of_before_there_were_patterns_is_read_and_written_as_it_was() -> None:
    offset = SourceOffset.from_json(json.loads(BEFORE_PATTERNS))
    assert offset.to_json() == json.loads(BEFORE_PATTERNS)
    check_still_read(OPTIONS, offset)
    check_fingerprint(offset.fingerprint, with_topics(fingerprint(OPTIONS), OPTIONS, topics_at(OPTIONS, offset)))


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


def test_an_option_that_was_not_set_before_is_to_be_removed_again() -> None:
    now = fingerprint(replace(OPTIONS, max_timestamp_jump_ms=5))
    with pytest.raises(OffsetError) as refused:
        check_fingerprint(fingerprint(OPTIONS), now)
    assert refused.value.fix == "Remove the option max_timestamp_jump_ms, or begin a new checkpoint"


@pytest.mark.parametrize(
    "changed",
    [
        {"topics": ("weather", "flights", "alerts"), "kinds": ("kafka", "redis", "files")},
        {"max_task_idle_ms": 7, "max_poll_records": 7, "input_buffer_max_bytes": 7},
        {"undecodable": "skip", "fail_on_data_loss": False, "starting": "latest"},
        {"reader_tasks": 7, "spool": None},
    ],
    ids=["topics appended", "bounds", "after a failure", "tasks"],
)
def test_options_that_leave_the_order_alone_may_change(changed: dict[str, object]) -> None:
    check_fingerprint(fingerprint(OPTIONS), fingerprint(replace(OPTIONS, **changed)))  # type: ignore[arg-type]


def of_kafka(**properties: str) -> dict[str, object]:
    given = tuple((name.replace("_", "."), value) for name, value in properties.items())
    return fingerprint(replace(OPTIONS, inputs=(KafkaConfig("h:1", ("weather",), given),)))


def test_what_decides_which_records_kafka_has_cannot_change_and_may_come_with_kafka() -> None:
    with pytest.raises(OffsetError, match=r"kafka\.isolation\.level was 'read_committed' .* 'read_uncommitted' now"):
        check_fingerprint(of_kafka(), of_kafka(isolation_level="read_uncommitted"))
    check_fingerprint(of_kafka(), of_kafka(isolation_level="read_committed", client_id="x"))
    check_fingerprint(fingerprint(OPTIONS), of_kafka(isolation_level="read_uncommitted"))


@pytest.mark.parametrize("batches", [0, 1])
def test_a_topic_of_which_no_record_was_read_may_get_timestamps_of_its_own(batches: int) -> None:
    then, now = (
        fingerprint(replace(OPTIONS, timestamp=TimestampRules(TimestampRule(), own)))
        for own in ((), (("flights", TimestampRule("json", "at")),))
    )
    offset = SourceOffset(then, {TopicPartition("weather", 0): Cursor("3", 4)}, batches=batches)
    check_fingerprint(then, now, offset.read_topics)
    read = replace(offset, cursors={**offset.cursors, TopicPartition("flights", 0): Cursor("0", 1)})
    if batches:
        with pytest.raises(OffsetError, match=r"timestamp was 'record' .* is 'record,flights:json:at' now"):
            check_fingerprint(then, now, read.read_topics)
    else:
        check_fingerprint(then, now, read.read_topics)


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


def test_poison_may_be_written_aside_when_a_batch_that_skipped_it_runs_again() -> None:
    skipped, aside = (fingerprint(replace(OPTIONS, undecodable=each)) for each in ("skip", "aside"))
    check_replay(*batch_with_poison(skipped, *OPTIONS.topics), aside)


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


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("skip", {}), ("keep", {"weather": "skip", "flights": "skip"})),
        (("skip", {"weather": "keep"}), ("keep", {"flights": "aside"})),
        (("skip", {"weather": "keep"}), ("fail", {"flights": "skip", "weather": "keep"})),
    ],
)
def test_a_logged_batch_with_poison_runs_again_when_undecodable_says_the_same_in_other_words(
    before: tuple[str, dict[str, str]], now: tuple[str, dict[str, str]]
) -> None:
    then, later = (
        fingerprint(replace(OPTIONS, undecodable=default, topic_undecodable=own))  # type: ignore[arg-type]
        for default, own in (before, now)
    )
    assert then != later
    check_replay(*batch_with_poison(then, *OPTIONS.topics), later)


def of_redis(**changed: str) -> dict[str, object]:
    config = RedisConfig(url="redis://127.0.0.1:1", topics=("weather",), **changed)  # type: ignore[arg-type]
    return fingerprint(replace(OPTIONS, inputs=(config,)))


@pytest.mark.parametrize("name", ["key_field", "value_field"])
def test_the_fields_of_a_redis_entry_that_make_a_record_cannot_change_and_may_come_with_redis(name: str) -> None:
    with pytest.raises(OffsetError, match=f"{name} was 'body' .* '{name.partition('_')[0]}' now"):
        check_fingerprint(of_redis(**{name: "body"}), of_redis())
    check_fingerprint(fingerprint(OPTIONS), of_redis(**{name: "body"}))
