"""Options as users write them: an error names the option and says how to fix it, at once."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest
from tests.support.kafka.migration_table import CLIENT_OPTIONS, SCRIPT, SOURCE_OPTIONS, outcome

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_topics import EARLIEST, LATEST, StartPositions, cursor_at, cursor_at_time
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.options import MIB, AlignedOptions, parse_timestamps
from understudy_shared.base.errors import SettingsError

REDIS = {"redis": "redis://localhost:6379", "topics": "weather,flights"}


def parsed(**more: str) -> AlignedOptions:
    return parse_options({**REDIS, **more})


def test_without_a_temporary_folder_there_is_no_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", missing)
    assert parsed().spool is None
    assert parsed(spool="/tmp/spool").spool == Path("/tmp/spool")


def test_every_option_is_taken_over() -> None:
    options = parsed(
        merge="GLOBAL",
        starting="latest",
        max_task_idle_ms="5",
        MAX_POLL_RECORDS="7",
        min_poll_records="6",
        max_trigger_delay_ms="2h",
        input_buffer_max_bytes="64MiB",
        timestamp="json:at",
        max_timestamp_jump_ms="3",
        available_now="Ordered",
        undecodable="aside",
        undecodable_path="file:///tmp/a%20b",
        fail_on_data_loss="false",
        request_timeout_ms="8",
        poll_timeout_ms="10",
        lag_max_age_ms="9",
        reader_tasks="4",
        spool="/tmp/spool",
        checkpoint="/tmp/checkpoint",
        metrics_port="0",
        include_headers="True",
        include_stream_time="true",
    )
    assert options == AlignedOptions(
        inputs=options.inputs,
        topics=("weather", "flights"),
        kinds=("redis", "redis"),
        merge="global",
        starting="latest",
        max_task_idle_ms=5,
        available_now="ordered",
        max_poll_records=7,
        min_poll_records=6,
        max_trigger_delay_ms=7_200_000,
        input_buffer_max_bytes=64 * MIB,
        timestamp=TimestampRules(TimestampRule("json", "at")),
        max_timestamp_jump_ms=3,
        undecodable="aside",
        undecodable_path=Path("/tmp/a b"),
        fail_on_data_loss=False,
        request_timeout_ms=8,
        poll_timeout_ms=10,
        lag_max_age_ms=9,
        reader_tasks=4,
        spool=Path("/tmp/spool"),
        checkpoint=Path("/tmp/checkpoint"),
        metrics_port=0,
        include_headers=True,
        include_stream_time=True,
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_task_idle": "1"}, "Did you mean 'max_task_idle_ms'"),
        ({"path": "/tmp/x"}, "there is no option 'path'"),
        ({"kafka.": "1"}, "there is no option 'kafka.'"),
        ({"max_task_idle_ms": "soon"}, "'soon' is not a whole number of at least 0, or -1"),
        ({"max_poll_records": "-2"}, "option max_poll_records"),
        ({"min_poll_records": "0"}, "'0' is not a whole number of at least 1"),
        ({"min_poll_records": "8", "max_poll_records": "7"}, "8 records at least (min_poll_records) and 7 at most"),
        ({"max_trigger_delay_ms": "soon"}, "'soon' is not a duration"),
        ({"max_trigger_delay_ms": "9" * 5_000}, "is not a duration"),
        ({"max_trigger_delay_ms": "-1s"}, "option max_trigger_delay_ms"),
        ({"input_buffer_max_bytes": "0"}, "option input_buffer_max_bytes"),
        ({"input_buffer_max_bytes": "much"}, "Write whole bytes"),
        ({"buffered_records_per_partition": "0"}, "option buffered_records_per_partition"),
        ({"max_timestamp_jump_ms": "-1"}, "option max_timestamp_jump_ms"),
        ({"reader_tasks": "0"}, "option reader_tasks"),
        ({"request_timeout_ms": "0"}, "option request_timeout_ms"),
        ({"metrics_port": "65536"}, "from 0 to 65535"),
        ({"merge": "both"}, "'both' is not one of task, global"),
        ({"starting": ""}, "the value is empty"),
        ({"undecodable": "ignore"}, "keep, fail, skip, aside, partition-time"),
        ({"undecodable": "skip,weather:aside"}, "undecodable_path is not set"),
        ({"fail_on_data_loss": "yes"}, "neither true nor false"),
        ({"timestamp": "at"}, "option timestamp"),
        ({"checkpoint": "s3://bucket/checkpoint"}, "not a folder of this machine"),
        ({"undecodable": "aside"}, "undecodable_path is not set"),
        ({"available_now": "ordered", "max_task_idle_ms": "-1"}, "option available_now"),
        ({"available_now": "ordered", "max_drift_ms": "5"}, "option available_now"),
        ({"max_drift_ms": "5", "max_task_idle_ms": "-1"}, "option max_drift_ms"),
        ({"available_now": "ordered", "max_task_idle_ms": "5,weather:-1"}, "option available_now"),
        ({"max_task_idle_ms": "5,wether:1"}, "'wether:1' names no topic of this query"),
        ({"max_task_idle_ms": "weather:1,weather:2"}, "'weather:2' names a topic a second time"),
        ({"max_task_idle_ms": "5,weather:soon"}, "'soon' is not a whole number of at least 0, or -1"),
        ({"max_task_idle_ms": "60,000"}, "'000' names no topic of this query"),
        ({"max_drift_ms": "-1"}, "'-1' is not a whole number from 0"),
        ({"undecodable_path": "/tmp/x"}, "undecodable is 'keep' and undecodable_path is set"),
        ({"kafka.client.id": "x"}, "kafka.client.id is set and kafka is not"),
        ({"topics": ""}, "the value is empty"),
        ({"topics": "a,,b"}, "without a name"),
        ({"topics": "a, a"}, "the topic 'a' is there twice"),
        ({"topics": "kafka:a"}, "comes from kafka, which is not set"),
        ({"kafka": "h:1"}, "Write kafka:weather or redis:weather"),
        ({"kafka": "h:1", "topics": "redis:a"}, "no topic comes from 'kafka'"),
        ({"topics_pattern": "a"}, "topics and topics_pattern both say what is read (option topics_pattern)"),
    ],
)
def test_what_is_wrong_is_reported_by_the_name_of_the_option(more: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parsed(**more)
    assert message in str(refused.value)


OF_KAFKA = {"kafka": "h:1"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"redis": "redis://h:1", "topics_pattern": "a"}, "reads nothing but Kafka, and redis is set"),
        ({**OF_KAFKA, "topics_pattern": "a", "assign": '{"a":[0]}'}, "topics_pattern and assign both say what is read"),
        ({**OF_KAFKA, "topics_pattern": "a("}, "'a(' is not a regular expression: missing )"),
        ({**OF_KAFKA, "topics_pattern": "a", "max_task_idle_ms": "0,b:5"}, "'b:5' names no topic of this query"),
        ({**OF_KAFKA, "topics_pattern": "a", "max_drift_ms": "1", "max_task_idle_ms": "-1"}, "option max_drift_ms"),
        ({**OF_KAFKA, "assign": "a"}, "'a' does not give each topic its partitions (option assign)"),
        ({**OF_KAFKA, "assign": '{"":[0]}'}, "does not give each topic its partitions"),
        ({**OF_KAFKA, "assign": '{"a":[]}'}, 'Write JSON like {"weather":[0,2]'),
        ({**OF_KAFKA, "assign": '{"a":[-1]}'}, "option assign"),
        ({**OF_KAFKA, "assign": '{"a":["0"]}'}, "option assign"),
        ({**OF_KAFKA, "assign": '{"a":0}'}, "option assign"),
        ({**OF_KAFKA, "assign": "[0]"}, "option assign"),
    ],
)
def test_what_is_wrong_with_a_pattern_or_with_assigned_partitions_is_reported(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_options(given)
    assert message in str(refused.value)


@pytest.mark.parametrize("idle", ["-2", "-1000"])
def test_statement_23_a_negative_idle_time_other_than_minus_1_is_refused(idle: str) -> None:
    assert parsed().max_task_idle_ms == 0
    assert parsed(max_task_idle_ms="-1").max_task_idle_ms == -1
    with pytest.raises(SettingsError, match="max_task_idle_ms"):
        parsed(max_task_idle_ms=idle)


def test_statement_46_the_bound_on_a_batch_is_at_least_one_record() -> None:
    assert parsed(max_poll_records="1").max_poll_records == 1
    with pytest.raises(SettingsError):
        parsed(max_poll_records="0")


def test_statement_61_the_deprecated_count_of_records_counts_alone_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options = parsed(buffered_records_per_partition="5")
    assert options.buffered_records_per_partition == 5
    assert "deprecated: use input_buffer_max_bytes" in caplog.text


def test_statement_61_the_new_bound_wins_and_set_means_given(caplog: pytest.LogCaptureFixture) -> None:
    default = str(AlignedOptions((), ()).input_buffer_max_bytes)
    with caplog.at_level(logging.WARNING):
        options = parsed(input_buffer_max_bytes=default, buffered_records_per_partition="5")
    assert options.buffered_records_per_partition is None
    assert "input_buffer_max_bytes is used" in caplog.text


@pytest.mark.parametrize("name", ["statestore_cache_max_bytes", "cache_max_bytes_buffering"])
def test_statement_61_the_name_of_the_cache_is_reported_as_the_nodes(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert parsed(**{name: "10m"}) == parsed()
    assert f"ignores {name}: statestore_cache_max_bytes bounds" in caplog.text


A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def parsed_of_spark(**more: str) -> AlignedOptions:
    return parse_options({**SCRIPT, **more})


def test_a_script_with_the_usual_options_means_what_it_means_to_sparks_own_source() -> None:
    options = parsed_of_spark(
        startingOffsets="EARLIEST",
        failOnDataLoss="false",
        includeHeaders="true",
        maxOffsetsPerTrigger="5000",
        minOffsetsPerTrigger="1000",
        maxTriggerDelay="5m",
        minPartitions="6",
        **{"kafka.security.protocol": "SSL", "kafka.client.id": "mine", "kafka.fetch.max.wait.ms": "40"},
    )
    (config,) = options.inputs
    assert isinstance(config, KafkaConfig)
    assert (config.server, config.topics) == ("broker:9092", ("weather", "flights"))
    assert dict(config.properties) == {"security.protocol": "SSL", "client.id": "mine", "fetch.wait.max.ms": "40"}
    assert (options.starting, options.fail_on_data_loss, options.include_headers) == ("earliest", False, True)
    assert (options.max_poll_records, options.reader_tasks) == (5000, 6)
    assert (options.min_poll_records, options.max_trigger_delay_ms) == (1000, 300_000)
    assert options.long_offsets


def test_every_option_of_sparks_source_works_or_says_what_to_write() -> None:
    for name, value in [*SOURCE_OPTIONS.items(), *CLIENT_OPTIONS.items()]:
        found = outcome(name, value)
        assert found.works or found.text, name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"topics": "a"}, "subscribe and topics are two names of one option"),
        (
            {"starting": "latest", "startingOffsets": "earliest"},
            "startingOffsets and starting are two names of one option",
        ),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "option minOffsetsPerTrigger, which is min_poll"),
        ({"startingOffsets": "newest"}, "'newest' is not one of earliest, latest"),
        ({"startingOffset": "earliest"}, "Did you mean 'startingoffsets'"),
        ({"startingOffsets": "{"}, 'Write JSON like {"flights":{"0":23'),
        ({"startingOffsets": '{"flights":{"0":-3}}'}, "at least -2"),
        ({"startingOffsets": '{"flights":{"0":true}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"flights":{"0":1}}'}, "do not agree about weather"),
        ({"startingOffsetsByTimestamp": '{"flights":{"0":-1},"weather":{"0":1}}'}, "at least 0"),
        ({"startingTimestamp": "yesterday"}, "'yesterday' is not a time in milliseconds"),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "first"}, "neither error nor latest"),
        ({"subscribePattern": "a"}, "topics and topics_pattern both say what is read"),
    ],
)
def test_what_is_wrong_with_an_option_of_sparks_is_reported(more: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parsed_of_spark(**more)
    assert message in str(refused.value)


def test_a_time_wins_over_times_of_partitions_and_these_over_offsets() -> None:
    each = '{"weather":{"0":1},"flights":{"0":2}}'
    positions = (("weather", 0, 1), ("flights", 0, 2))
    by_offset = StartPositions("startingOffsets", offsets=positions)
    assert parsed_of_spark(startingOffsets=each).start_positions == by_offset
    by_time = StartPositions("startingOffsetsByTimestamp", times_ms=positions)
    assert parsed_of_spark(startingOffsets=each, startingOffsetsByTimestamp=each).start_positions == by_time
    at_once = StartPositions("startingTimestamp", time_ms=5, latest_if_none=True)
    more = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "Latest"}
    assert parsed_of_spark(startingOffsets=each, startingOffsetsByTimestamp=each, **more).start_positions == at_once


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (EARLIEST, Cursor("2", 3)),
        (LATEST, Cursor("8", 9)),
        (3, Cursor("2", 3)),
        (9, Cursor("8", 9)),
        (5, Cursor("4", 5)),
    ],
)
def test_an_offset_is_the_first_record_to_come(offset: int, expected: Cursor) -> None:
    assert cursor_at(A0, offset, low=3, end=9, option="startingOffsets") == expected


@pytest.mark.parametrize("offset", [2, 10])
def test_an_offset_that_a_log_does_not_have_is_refused(offset: int) -> None:
    with pytest.raises(SettingsError, match=f"a-0 has offsets from 3 to 9, not {offset}"):
        cursor_at(A0, offset, low=3, end=9, option="startingOffsets")


def test_a_time_without_records_is_the_end_or_an_error() -> None:
    at = StartPositions("startingTimestamp", time_ms=5)
    assert cursor_at_time(A0, 4, time_ms=5, end=9, positions=at) == Cursor("3", 4)
    with pytest.raises(SettingsError, match=r"a-0 has no record at 5 ms or later.*Strategy to latest"):
        cursor_at_time(A0, None, time_ms=5, end=9, positions=at)
    lenient = StartPositions("startingTimestamp", time_ms=5, latest_if_none=True)
    assert cursor_at_time(A0, None, time_ms=5, end=9, positions=lenient) == Cursor("8", 9)


def test_positions_are_of_exactly_the_partitions_that_there_are() -> None:
    positions = StartPositions("startingOffsets", offsets=(("a", 0, 1), ("a", 1, 2)))
    assert positions.of_partitions([A0, A1]) == {A0: 1, A1: 2}
    with pytest.raises(SettingsError, match="leaves out a-2"):
        positions.of_partitions([A0, A1, TopicPartition("a", 2)])
    with pytest.raises(SettingsError, match="do not exist: a-1"):
        positions.of_partitions([A0])
    assert StartPositions("startingTimestamp", time_ms=7).of_partitions([A0, A1]) == {A0: 7, A1: 7}


RECORD, AT = TimestampRule(), TimestampRule("json", "at")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("record", TimestampRules()),
        ("json:at", TimestampRules(AT)),
        ("json:a,b", TimestampRules(TimestampRule("json", "a,b"))),
        ("json:/a/b", TimestampRules(TimestampRule("json", "/a/b"))),
        ("header:event-time", TimestampRules(TimestampRule("header", "event-time"))),
        ("weather:json:at", TimestampRules(RECORD, (("weather", AT),))),
        ("json:at, weather:record", TimestampRules(AT, (("weather", RECORD),))),
        ("record,b:json:at,a:header:h", TimestampRules(RECORD, (("a", TimestampRule("header", "h")), ("b", AT)))),
        ("record,site:a:json:at", TimestampRules(RECORD, (("site:a", AT),))),
    ],
)
def test_a_rule_is_of_all_topics_or_of_the_topic_before_it(text: str, expected: TimestampRules) -> None:
    assert parse_timestamps(text) == expected
    assert parse_timestamps(expected.text) == expected, "the fingerprint says the same"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jsn:at", "'jsn:at' is not a rule"),
        ("json:", "'json:' is not a rule"),
        ("confluent-json:at", "is not a rule"),
        ("record,weather:json:at,weather:record", "'weather' has two rules"),
        ("avro:no-such.avsc#/at", "no-such.avsc cannot be read: No such file"),
        ("avro:all.avsc", "is not a rule"),
        ("avro:all.avsc#at", "does not look like <file>#/<field>"),
        ("protobuf:all.desc#/at", "does not look like <file>#<message>/<field>"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_form_of_one(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_timestamps(text)


def test_what_has_no_usable_timestamp_is_kept_where_records_have_their_own_and_else_ends_the_query() -> None:
    given = {"kafka": "localhost:9092", "topics": "a,b", "timestamp": "record,b:json:at"}
    usual, refused, chosen = (
        parse_options({**given, **more}) for more in ({}, {"undecodable": "skip"}, {"undecodable": "a:skip"})
    )
    assert [usual.undecodable_of(topic) for topic in "ab"] == ["keep", "fail"]
    assert [refused.undecodable_of(topic) for topic in "ab"] == ["skip", "skip"]
    assert [chosen.undecodable_of(topic) for topic in "ab"] == ["skip", "fail"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"redis": "redis://localhost", "topics": "a", "timestamp": "header:at"}, "'a' come from redis"),
        (
            {"kafka": "localhost:9092", "topics": "a", "timestamp": "b:json:at"},
            "'b', which this query does not read",
        ),
    ],
)
def test_a_rule_that_can_hold_for_no_record_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_options(options)
