"""The Kafka input against librdkafka's mock broker: order, amounts, positions and lags."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kafka.clients import Reading, mock_cluster, produce
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.protocol import InputError, Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.open_inputs import open_reader

pytestmark = pytest.mark.usefixtures("taking")


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with mock_cluster() as found:
        yield found


@contextmanager
def reading(config: KafkaConfig) -> Iterator[Reading]:
    reads = Reading(KafkaInput(config))
    try:
        yield reads
    finally:
        reads.input.close()


def new_topic() -> str:
    return f"t{uuid4().hex[:12]}"


def numbered(count: int, start: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(start, start + count)]


def test_records_come_in_log_order_with_all_that_they_carry(servers: str) -> None:
    where = TopicPartition(new_topic(), 1)
    produce(servers, where, [b"a", None, b""], key=b"k", headers=[("h", b"1"), ("h", None)])
    with reading(KafkaConfig(servers, (where.topic,), include_headers=True)) as reads:
        reads.seek(where)
        reads.until_lag(where, 0)
        assert reads.values(where) == [b"a", None, b""]
        assert reads.column(where, "key") == [b"k"] * 3
        assert reads.column(where, "offset") == ["0", "1", "2"]
        assert reads.column(where, "timestamp_ms") == [1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002]
        assert reads.column(where, "headers") == [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}]] * 3


def test_a_turn_brings_no_more_than_was_wanted_in_all_and_the_rest_comes_later(servers: str) -> None:
    a, b = (TopicPartition(new_topic(), 0) for _ in range(2))
    produce(servers, a, numbered(2_000))
    produce(servers, b, numbered(10))
    with reading(KafkaConfig(servers, (a.topic, b.topic))) as reads:
        reads.seek(a, b)

        def is_read() -> bool:
            before = len(reads.values(a)) + len(reads.values(b))
            reads.turn({a: 70, b: 3})
            assert len(reads.values(a)) + len(reads.values(b)) - before <= 73
            return len(reads.values(a)) >= 700 and len(reads.values(b)) == 10

        wait_until(is_read, what="700 and 10 records")
        reads.until_lag(a, 0)
        assert reads.values(a) == numbered(2_000)
        assert reads.values(b) == numbered(10)


@settings(max_examples=8)
@given(wants=st.lists(st.dictionaries(st.integers(0, 2), st.integers(1, 400), max_size=3), max_size=12))
def test_whatever_is_wanted_when_nothing_is_lost_or_comes_twice(servers: str, wants: list[dict[int, int]]) -> None:
    topic = new_topic()
    partitions = [TopicPartition(topic, number) for number in range(3)]
    for partition in partitions:
        produce(servers, partition, numbered(500))
    with reading(KafkaConfig(servers, (topic,))) as reads:
        reads.seek(*partitions)
        for want in wants:
            came = {partition: len(reads.values(partition)) for partition in partitions}
            reads.turn({partitions[number]: count for number, count in want.items()}, timeout_ms=20)
            new = [len(reads.values(partition)) - came[partition] for partition in partitions]
            assert sum(new) <= sum(want.values())
            assert not any(count for number, count in enumerate(new) if number not in want)
        for partition in partitions:
            reads.until_lag(partition, 0)
            assert reads.values(partition) == numbered(500)


def test_statement_43_and_45_lag_is_the_end_less_what_was_handed_out(servers: str) -> None:
    where = TopicPartition(new_topic(), 0)
    produce(servers, where, numbered(90))
    with reading(KafkaConfig(servers, (where.topic,))) as reads:
        reads.seek(where)
        while len(reads.values(where)) < 50:
            reads.turn({where: 50 - len(reads.values(where))})
        wait_until(lambda: where in reads.turn({}), what="a lag")
        assert reads.lags[where] == 40
        produce(servers, where, numbered(10, start=90))
        while len(reads.values(where)) < 55:
            reads.turn({where: 55 - len(reads.values(where))})
        wait_until(lambda: reads.turn({}).get(where) == 45, what="the lag after 5 of 50 more")


def test_a_reader_goes_on_behind_its_cursor_and_may_go_back(servers: str) -> None:
    where = TopicPartition(new_topic(), 0)
    produce(servers, where, numbered(1_000))
    with reading(KafkaConfig(servers, (where.topic,))) as reads:
        for last in (899, 99, 949):
            reads.rows.clear()
            reads.seek(where, cursor=Cursor(str(last), last + 1))
            reads.until_lag(where, 0)
            assert reads.values(where) == numbered(999 - last, start=last + 1)


def test_ranges_are_read_again_exactly_and_by_one_reader(servers: str) -> None:
    topic = new_topic()
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(servers, a, numbered(25_000))
    produce(servers, b, numbered(10))
    reader = open_reader(KafkaConfig(servers, (topic,)))
    try:
        for partition, start, end in [(a, -1, 24_998), (b, 3, 8), (a, 9_999, 10_000), (b, -1, 0), (a, 24_998, 24_999)]:
            begin = Cursor() if start < 0 else Cursor(str(start), start + 1)
            batches = list(reader.read(Range(partition, begin, Cursor(str(end), end + 1))))
            assert [value for rows in batches for value in rows["value"].to_pylist()] == numbered(
                end - start, start=start + 1
            )
            assert all(rows.num_rows <= 20_000 for rows in batches)
    finally:
        reader.close()


def test_a_range_given_up_half_way_leaves_nothing_to_the_next(servers: str) -> None:
    where = TopicPartition(new_topic(), 0)
    produce(servers, where, numbered(25_000))
    reader = open_reader(KafkaConfig(servers, (where.topic,)))
    try:
        batches = reader.read(Range(where, Cursor(), Cursor("24999", 25_000)))
        next(batches)
        batches.close()  # type: ignore[attr-defined]  # an iterator that is a generator
        (rows,) = reader.read(Range(where, Cursor("4", 5), Cursor("7", 8)))
        assert rows["value"].to_pylist() == numbered(3, start=5)
    finally:
        reader.close()


@pytest.mark.full
def test_a_broker_that_is_not_there_is_an_input_error_that_names_it_and_nothing_is_written_to_stderr(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    where = TopicPartition("weather", 0)
    with caplog.at_level(logging.DEBUG), reading(KafkaConfig("127.0.0.1:1", ("weather",))) as reads:
        with pytest.raises(InputError, match=r"127\.0\.0\.1:1"):
            reads.input.partitions(timeout_ms=300)
        with pytest.raises(InputError, match=r"127\.0\.0\.1:1"):
            reads.input.ends([where], timeout_ms=300)
        with pytest.raises(InputError, match=r"127\.0\.0\.1:1"):
            reads.input.seek({where: Cursor()}, timeout_ms=300)
        with pytest.raises(InputError, match="Connection refused"):
            reads.input.fetch({}, timeout_ms=3_000)
    reader = open_reader(KafkaConfig("127.0.0.1:1", ("weather",), request_timeout_ms=300))
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1"):
        list(reader.read(Range(where, Cursor(), Cursor("0", 1))))
    reader.close()
    assert capfd.readouterr().err == ""
    assert "Connection refused" in caplog.text
