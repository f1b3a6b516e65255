"""The Kafka input against librdkafka's mock broker: order, amounts, positions and lags; and against a real broker: what
is read ahead, by librdkafka's statistics, and one that is killed or frozen: calls keep their time, nothing is reset
silently.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import Reading, mock_cluster, produce, reading
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs import kafka_client, kafka_input
from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.protocol import ClientQueue, DataLostError, InputError, Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.open_inputs import open_reader

pytestmark = pytest.mark.usefixtures("taking")


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with mock_cluster() as found:
        yield found


def new_topic() -> str:
    return f"t{uuid4().hex[:12]}"


def numbered(count: int, start: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(start, start + count)]


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


RECORDS, VALUE = 5_000, bytes(1_000)


@pytest.fixture
def statistics(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that came of librdkafka."""
    came: list[str] = []
    queue_of = kafka_client.queue_of

    def keep(text: str) -> ClientQueue:
        came.append(text)
        return queue_of(text)

    monkeypatch.setattr(kafka_client, "queue_of", keep)
    return came


def test_what_the_client_has_read_ahead_is_known_and_is_dropped_with_its_statistics_while_nothing_is_fetched(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, statistics: list[str]
) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [VALUE] * RECORDS)
    with reading(KafkaConfig(broker.servers, (where.topic,), (("statistics.interval.ms", "100"),))) as reads:
        reads.seek(where)
        assert reads.input.client_queue is None

        def holds_nearly_all() -> bool:
            reads.turn({where: 1})
            return (reads.input.client_queue or ClientQueue(0, 0)).bytes > 0.9 * RECORDS * len(VALUE)

        wait_until(holds_nearly_all, what="what is read ahead", every_s=0.05)
        queue = reads.input.client_queue
        assert queue is not None
        assert queue.bytes % len(VALUE) == 0
        assert queue.bytes // len(VALUE) <= queue.records <= RECORDS + 10, "records, and events between them"

        monkeypatch.setattr(kafka_input, "UNREAD_MS", 0)
        came = len(statistics)
        # Nothing is fetched: only the look at the partitions takes them out of the client's queue.
        wait_until(lambda: bool(reads.input.partitions(timeout_ms=10_000)) and len(statistics) > came + 1, what="more")
        assert reads.input.client_queue == ClientQueue(0, 0)
        reads.until_lag(where, 0)
        assert reads.column(where, "ordinal") == list(range(RECORDS))


TIMEOUT_MS = 1_500
FAR_TOO_LONG_S = 20
"""Librdkafka's own limits are 60 s."""


def reading_of(broker: KafkaBroker, where: TopicPartition) -> AbstractContextManager[Reading]:
    return reading(KafkaConfig(broker.servers, (where.topic,), request_timeout_ms=TIMEOUT_MS))


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
    with reading_of(broker, where) as reads:
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
    with reading_of(broker, where) as reads:
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
    with reading_of(broker, where) as reads:
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
    with reading_of(broker, where) as reads:
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
