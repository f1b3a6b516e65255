"""A real broker that is killed, frozen, emptied: calls keep their time, lags are unknown, nothing is reset silently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import Reading, produce
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.protocol import DataLostError, InputError, Range, UnknownTopicError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.open_inputs import open_reader

pytestmark = pytest.mark.usefixtures("taking")

TIMEOUT_MS = 1_500
FAR_TOO_LONG_S = 20
"""Librdkafka's own limits are 60 s."""


@contextmanager
def reading(broker: KafkaBroker, where: TopicPartition) -> Iterator[Reading]:
    reads = Reading(KafkaInput(KafkaConfig(broker.servers, (where.topic,), request_timeout_ms=TIMEOUT_MS)))
    try:
        yield reads
    finally:
        reads.input.close()


def turn(reads: Reading, where: TopicPartition) -> bool:
    """Whether a turn passed without an error."""
    try:
        reads.turn({where: 100})
    except InputError:
        return False
    return True


def read_on(reads: Reading, where: TopicPartition, count: int) -> None:
    wait_until(lambda: turn(reads, where) and len(reads.values(where)) >= count, what="records", limit_s=60)


def test_a_broker_that_hangs_costs_each_call_its_time_and_no_more_and_its_lags_are_unknown(
    broker: KafkaBroker,
) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [b"before"])
    with reading(broker, where) as reads:
        reads.seek(where)
        reads.until_lag(where, 0)
        broker.pause()
        try:
            wait_until(lambda: not reads.turn({where: 9}), what="what was under way")
            began_s = time.monotonic()
            reads.lags.clear()
            wait_until(lambda: not turn(reads, where), what="an error", limit_s=FAR_TOO_LONG_S)
            assert reads.lags == {}
            for call in (
                lambda: reads.input.partitions(timeout_ms=200),
                lambda: reads.input.seek({where: Cursor()}, timeout_ms=200),
                lambda: reads.input.ends([where], timeout_ms=200),
            ):
                with pytest.raises(InputError, match=broker.servers):
                    call()
            hung = open_reader(KafkaConfig(broker.servers, (where.topic,), request_timeout_ms=300))
            with pytest.raises(InputError, match=broker.servers):
                list(hung.read(Range(where, Cursor(), Cursor("0", 1))))
            hung.close()
            assert time.monotonic() - began_s < FAR_TOO_LONG_S
        finally:
            broker.resume()
        produce(broker.servers, where, [b"after"])
        read_on(reads, where, 2)
        wait_until(lambda: turn(reads, where) and reads.lags.get(where) == 0, what="its lag", limit_s=60)
        assert reads.values(where) == [b"before", b"after"]


def test_an_input_of_a_hanging_broker_is_closed_without_it(broker: KafkaBroker) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [b"v"])
    with reading(broker, where) as reads:
        reads.seek(where)
        reads.until_lag(where, 0)
        broker.pause()
        try:
            began_s = time.monotonic()
            reads.input.close()
            assert time.monotonic() - began_s < FAR_TOO_LONG_S
        finally:
            broker.resume()


@pytest.mark.full
def test_a_broker_that_was_killed_is_an_error_until_it_is_back_and_nothing_is_lost_or_read_twice(
    broker: KafkaBroker,
) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [b"%d" % number for number in range(500)])
    reader = open_reader(KafkaConfig(broker.servers, (where.topic,), request_timeout_ms=TIMEOUT_MS))
    with reading(broker, where) as reads:
        reads.seek(where)
        read_on(reads, where, 100)
        assert sum(rows.num_rows for rows in reader.read(Range(where, Cursor(), Cursor("9", 10)))) == 10
        broker.kill()
        wait_until(lambda: not turn(reads, where), what="an error")
        with pytest.raises(InputError, match=r"refused|transport"):
            list(reader.read(Range(where, Cursor("9", 10), Cursor("19", 20))))
        broker.start()
        read_on(reads, where, 500)
        reads.until_lag(where, 0)
        assert reads.column(where, "ordinal") == list(range(500))
        (rows,) = reader.read(Range(where, Cursor("9", 10), Cursor("19", 20)))
        assert rows["ordinal"].to_pylist() == list(range(10, 20))
        reader.close()


def test_a_topic_that_was_made_anew_is_reported_on_both_sides_and_never_read_from_its_beginning(
    broker: KafkaBroker,
) -> None:
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"old"] * 50)
    with reading(broker, where) as reads:
        reads.seek(where)
        read_on(reads, where, 50)
        broker.delete_topic(name)
        broker.make_topic(name=name)
        produce(broker.servers, where, [b"new"] * 5)
        with pytest.raises(DataLostError, match="the log ends at offset 5, before offset 50"):
            wait_until(lambda: turn(reads, where) and False, what="the loss", limit_s=60)
        assert set(reads.values(where)) == {b"old"}
    reader = open_reader(KafkaConfig(broker.servers, (name,), request_timeout_ms=5_000))
    with pytest.raises(DataLostError, match="the log ends at offset 5"):
        list(reader.read(Range(where, Cursor("9", 10), Cursor("49", 50))))
    with pytest.raises(DataLostError, match="ends at offset 5, before the planned record 49"):
        list(reader.read(Range(where, Cursor("2", 3), Cursor("49", 50))))
    reader.close()


@pytest.mark.full
def test_a_broker_that_comes_back_empty_is_an_error_and_no_new_beginning(broker: KafkaBroker) -> None:
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"old"] * 50)
    with reading(broker, where) as reads:
        reads.seek(where)
        read_on(reads, where, 50)
        broker.empty()
        wait_until(lambda: _is_unknown(reads), what="the topic's absence", limit_s=60)
        broker.make_topic(name=name)
        with pytest.raises(DataLostError, match="the log ends at offset 0, before offset 50"):
            wait_until(lambda: turn(reads, where) and False, what="the loss", limit_s=60)
        assert reads.values(where) == [b"old"] * 50


def _is_unknown(reads: Reading) -> bool:
    try:
        reads.input.partitions(timeout_ms=2_000)
    except UnknownTopicError:
        return True
    except InputError:
        return False
    return False
