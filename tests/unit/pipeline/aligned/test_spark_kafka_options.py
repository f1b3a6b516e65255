"""Scripts of those who come from `format("kafka")`: each option works as there, or its error says what to write."""

from __future__ import annotations

import pickle

import pytest
from tests.support.kafka.migration_table import CLIENT_OPTIONS, SCRIPT, SOURCE_OPTIONS, outcome

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_topics import EARLIEST, LATEST, StartPositions, cursor_at, cursor_at_time
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.options import AlignedOptions
from understudy_aligned.source import AlignedSource
from understudy_shared.base.errors import SettingsError

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def parsed(**more: str) -> AlignedOptions:
    return parse_options({**SCRIPT, **more})


def test_a_script_with_the_usual_options_means_what_it_means_to_sparks_own_source() -> None:
    options = parsed(
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
        ({"kafka": "h:1"}, "kafka.bootstrap.servers and kafka are two names of one option"),
        (
            {"starting": "latest", "startingOffsets": "earliest"},
            "startingOffsets and starting are two names of one option",
        ),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "option minOffsetsPerTrigger, which is min_poll"),
        ({"startingOffsets": "newest"}, "'newest' is not one of earliest, latest"),
        ({"startingOffset": "earliest"}, "Did you mean 'startingoffsets'"),
        ({"startingOffsets": "{"}, 'Write JSON like {"flights":{"0":23'),
        ({"startingOffsets": '{"flights":{"0":-3}}'}, "at least -2"),
        ({"startingOffsets": '{"flights":{"0":1.5}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"flights":{"0":true}}'}, "option startingOffsets"),
        ({"startingOffsets": '{"flights":{"0":1}}'}, "do not agree about weather"),
        ({"startingOffsetsByTimestamp": '{"flights":{"0":-1},"weather":{"0":1}}'}, "at least 0"),
        ({"startingTimestamp": "yesterday"}, "'yesterday' is not a time in milliseconds"),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "first"}, "neither error nor latest"),
        ({"subscribePattern": "a"}, "topics and topics_pattern both say what is read"),
        ({"assign": '{"a":[0]}'}, "topics and assign both say what is read"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger, which is max_poll_records here"),
    ],
)
def test_what_is_wrong_with_an_option_of_sparks_is_reported(more: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parsed(**more)
    assert message in str(refused.value)


def test_a_time_wins_over_times_of_partitions_and_these_over_offsets() -> None:
    each = '{"weather":{"0":1},"flights":{"0":2}}'
    positions = (("weather", 0, 1), ("flights", 0, 2))
    by_offset = StartPositions("startingOffsets", offsets=positions)
    assert parsed(startingOffsets=each).start_positions == by_offset
    by_time = StartPositions("startingOffsetsByTimestamp", times_ms=positions)
    assert parsed(startingOffsets=each, startingOffsetsByTimestamp=each).start_positions == by_time
    at_once = StartPositions("startingTimestamp", time_ms=5, latest_if_none=True)
    more = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "Latest"}
    assert parsed(startingOffsets=each, startingOffsetsByTimestamp=each, **more).start_positions == at_once


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


class _Unchecked(AlignedSource):
    """A source that asks no server."""

    def __init__(self, options: dict[str, str]) -> None:
        self._schema_asked = False
        self._parsed = parse_options(options)


def test_a_schema_of_ones_own_is_refused_when_spark_pickles_the_source_and_a_batch_when_it_is_read() -> None:
    source = _Unchecked(dict(SCRIPT))
    with pytest.raises(SettingsError, match=r"columns of this source are fixed \(\.schema"):
        pickle.dumps(source)
    assert source.schema().split(", ")[4] == "offset bigint"
    copied = pickle.loads(pickle.dumps(source))
    assert pickle.dumps(copied)
    with pytest.raises(SettingsError, match=r"spark\.read\.format\('kafka'\)"):
        copied.reader(None)
