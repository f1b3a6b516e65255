"""Talking to Kafka as others do: producers, transactions, a mock cluster, and an input read until there is no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.records import ROW_SCHEMA, Cursor, TopicPartition

_FLUSH_S = 30


@contextmanager
def mock_cluster() -> Iterator[str]:
    """Bootstrap servers of librdkafka's own mock broker: quick, with four partitions for every topic."""
    host = Producer({"test.mock.num.brokers": 1})
    yield ",".join(f"{broker.host}:{broker.port}" for broker in host.list_topics(timeout=10).brokers.values())
    host.purge()


def produce(
    servers: str,
    where: TopicPartition,
    values: Sequence[bytes | None],
    *,
    key: bytes | None = None,
    first_time_ms: int = 1_700_000_000_000,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
) -> None:
    """Records a millisecond apart, and wait until the broker has them."""
    producer = Producer({"bootstrap.servers": servers})
    for index, value in enumerate(values):
        more: dict[str, Any] = {} if headers is None else {"headers": list(headers)}
        producer.produce(where.topic, value, key, partition=where.partition, timestamp=first_time_ms + index, **more)
    assert producer.flush(_FLUSH_S) == 0


def begin_transaction(
    servers: str, name: str, where: TopicPartition, values: Sequence[bytes], *, key: bytes | None = None
) -> Producer:
    """Records of a transaction that is open; they are in the log."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(_FLUSH_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(where.topic, value, key, partition=where.partition)
    assert producer.flush(_FLUSH_S) == 0
    return producer


class Reading:
    def __init__(self, reads: KafkaInput) -> None:
        self.input = reads
        self.rows: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self.lags: dict[TopicPartition, int] = {}

    def seek(self, *partitions: TopicPartition, cursor: Cursor | None = None) -> None:
        """Move to a cursor, by default to the beginning."""
        self.input.seek(dict.fromkeys(partitions, cursor or Cursor()), timeout_ms=10_000)

    def turn(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int = 100) -> Mapping[TopicPartition, int]:
        fetched = self.input.fetch(wanted, timeout_ms=timeout_ms)
        for chunk in fetched.chunks:
            assert chunk.rows.schema == ROW_SCHEMA
            assert len(chunk.sizes) == chunk.rows.num_rows > 0
            self.rows.setdefault(chunk.partition, []).append(chunk.rows)
        self.lags.update(fetched.lags)
        return fetched.lags

    def until_lag(self, partition: TopicPartition, lag: int) -> None:
        wait_until(lambda: self.turn({partition: 10_000}).get(partition) == lag, what=f"lag {lag} of {partition}")

    def column(self, partition: TopicPartition, name: str) -> list[Any]:
        """A column of all records, in the order of their arrival."""
        return [value for rows in self.rows.get(partition, []) for value in rows[name].to_pylist()]

    def values(self, partition: TopicPartition) -> list[Any]:
        return self.column(partition, "value")


@contextmanager
def reading(config: KafkaConfig) -> Iterator[Reading]:
    reads = Reading(KafkaInput(config))
    try:
        yield reads
    finally:
        reads.input.close()
