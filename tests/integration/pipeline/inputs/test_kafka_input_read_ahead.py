"""What librdkafka has read ahead of the planner, by its own statistics, with a real broker."""

from __future__ import annotations

import pytest
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import Reading, produce
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs import kafka_client, kafka_input
from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.protocol import ClientQueue
from understudy_aligned.inputs.records import TopicPartition

pytestmark = pytest.mark.usefixtures("taking")

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
    reads = Reading(KafkaInput(KafkaConfig(broker.servers, (where.topic,), (("statistics.interval.ms", "100"),))))
    try:
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
    finally:
        reads.input.close()
