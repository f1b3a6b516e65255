"""Options as users write them: an error names the option and says how to fix it, at once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.options import MIB, AlignedOptions
from understudy_shared.base.errors import SettingsError

REDIS = {"redis": "redis://localhost:6379", "topics": "weather,flights"}


def parsed(**more: str) -> AlignedOptions:
    return parse_options({**REDIS, **more})


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
        ({"max_poll_records": "0"}, "option max_poll_records"),
        ({"max_poll_records": "-2"}, "option max_poll_records"),
        ({"min_poll_records": "0"}, "'0' is not a whole number of at least 1"),
        ({"min_poll_records": "8", "max_poll_records": "7"}, "8 records at least (min_poll_records) and 7 at most"),
        ({"max_trigger_delay_ms": "soon"}, "'soon' is not a duration"),
        ({"max_trigger_delay_ms": "5 weeks"}, "Write it like 30s"),
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
        ({"max_task_idle_ms": "weather:1,5"}, "'5' names no topic of this query"),
        ({"undecodable": "fail,skip"}, "'skip' names no topic of this query"),
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
        ({"redis": "redis://h:1", "assign": '{"a":[0]}'}, "reads nothing but Kafka, and redis is set (option assign)"),
        (
            {**OF_KAFKA, "redis": "redis://h:1", "topics_pattern": "a"},
            "reads nothing but Kafka, and kafka, redis is set",
        ),
        ({**OF_KAFKA, "topics_pattern": "a", "assign": '{"a":[0]}'}, "topics_pattern and assign both say what is read"),
        ({**OF_KAFKA, "topics_pattern": "a("}, "'a(' is not a regular expression: missing )"),
        ({**OF_KAFKA, "topics_pattern": ""}, "the value is empty (option topics_pattern)"),
        ({**OF_KAFKA, "topics_pattern": "a", "max_task_idle_ms": "0,b:5"}, "'b:5' names no topic of this query"),
        ({**OF_KAFKA, "topics_pattern": "a", "max_drift_ms": "1", "max_task_idle_ms": "-1"}, "option max_drift_ms"),
        ({**OF_KAFKA, "assign": "a"}, "'a' does not give each topic its partitions (option assign)"),
        ({**OF_KAFKA, "assign": "{}"}, "'{}' does not give each topic its partitions"),
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
