"""The client's calls to librdkafka, and when they happen. Their effect is tested with brokers (tests/integration)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from understudy_aligned.inputs.kafka_client import KafkaClient, partition_fetch_bytes
from understudy_aligned.inputs.records import TopicPartition

MOST_AT_ONCE = 1_000
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


MIB = 1 << 20


class RecordingConsumer:
    """Holds so many messages, which are numbers, and keeps what it was asked."""

    def __init__(self, *_: object) -> None:
        self.asked: list[tuple[str, object]] = []
        self.buffered: list[int] = []
        self.is_away = False

    def list_topics(self, topic: str, *, timeout: float) -> None:
        assert 0 < timeout <= 1
        self.asked.append(("leaders", topic))
        if self.is_away:
            raise KafkaException("away")

    def assign(self, partitions: Sequence[KafkaPartition]) -> None:
        self.asked.append(("assign", {each.topic for each in partitions}))

    def poll(self, _: float) -> int | None:
        return self.buffered.pop(0) if self.buffered else None

    def consume(self, count: int, timeout: float) -> list[int]:
        assert timeout == 0, "only the first is waited for"
        self.asked.append(("consume", count))
        taken, self.buffered = self.buffered[:count], self.buffered[count:]
        return taken


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> RecordingConsumer:
    made = RecordingConsumer()
    monkeypatch.setattr("understudy_aligned.inputs.kafka_client.Consumer", lambda _: made)
    return made


def test_leaders_of_a_topic_are_asked_for_once_and_before_it_is_read(consumer: RecordingConsumer) -> None:
    client = KafkaClient("server", {})
    client.assign({A: 0})
    client.assign({A: 5})
    client.assign({A: 5, B: 0})
    assert consumer.asked == [
        ("leaders", "a"),
        ("assign", {"a"}),
        ("assign", {"a"}),
        ("leaders", "b"),
        ("assign", {"a", "b"}),
    ]


def test_leaders_that_are_not_found_hold_up_nothing_and_are_asked_for_again(consumer: RecordingConsumer) -> None:
    client = KafkaClient("server", {})
    consumer.is_away = True
    client.assign({A: 0})
    client.assign({A: 0})
    assert consumer.asked == [("leaders", "a"), ("assign", {"a"})] * 2


@pytest.mark.parametrize("held", [0, 1, 999, 1_000, 1_001, 2_500, 9_000])
@pytest.mark.parametrize("wanted", [1, 1_000, 1_001, 2_500])
def test_messages_come_in_order_and_no_more_of_them_than_wanted_and_few_in_one_call(
    consumer: RecordingConsumer, held: int, wanted: int
) -> None:
    consumer.buffered = list(range(held))
    messages: list[object] = list(KafkaClient("server", {}).messages(wanted, wait_s=0))
    assert messages == list(range(min(held, wanted)))
    assert all(isinstance(count, int) and 0 < count <= MOST_AT_ONCE for _, count in consumer.asked)


@pytest.mark.parametrize(
    ("memory", "partitions", "each"),
    [
        pytest.param(512 * MIB, 20, MIB, id="few partitions bring what Kafka brings by default"),
        pytest.param(512 * MIB, 512, MIB // 2, id="all together bring half of the memory"),
        pytest.param(64 * MIB, 5_000, MIB // 16, id="an answer is worth its cost"),
        pytest.param(64 * MIB, 0, MIB, id="no partition yet"),
    ],
)
def test_what_one_answer_brings_of_a_partition_leaves_memory_for_all_others(
    memory: int, partitions: int, each: int
) -> None:
    assert partition_fetch_bytes(memory, partitions) == each


@pytest.mark.parametrize(
    ("properties", "found"), [({}, f"{MIB // 2}"), ({"max.partition.fetch.bytes": "7000"}, "7000")]
)
def test_a_consumer_of_records_is_told_so_unless_its_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], found: str
) -> None:
    told: list[dict[str, object]] = []

    def make(given: dict[str, object]) -> RecordingConsumer:
        told.append(given)
        return RecordingConsumer()

    monkeypatch.setattr("understudy_aligned.inputs.kafka_client.Consumer", make)
    KafkaClient("server", properties, buffer_bytes=2 * MIB).assign({A: 0, B: 0})
    assert [given["max.partition.fetch.bytes"] for given in told] == [found]
