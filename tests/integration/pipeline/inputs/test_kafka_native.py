"""The native library reads the same records from a log as the Python objects of confluent-kafka have."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import begin_transaction, mock_cluster

from understudy_aligned.inputs import kafka_client, kafka_native
from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.protocol import InputError
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition

PARTITIONS = 4
NAMES = ["h", "", "kopf-ä", "x" * 300]
COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]

Found = Mapping[TopicPartition, list[tuple[dict[str, Any], int]]]
"""The records of each partition, with their sizes."""


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    with mock_cluster() as servers:
        yield servers


@pytest.fixture(autouse=True)
def _needs_the_library() -> None:
    if kafka_native.native_library() is None:
        pytest.skip("no library: no C compiler")


def some_bytes(chance: random.Random, most: int) -> bytes | None:
    length = chance.choice([None, 0, 1, 7, 100, chance.randint(0, most)])
    return None if length is None else chance.randbytes(length)


def write(servers: str, places: list[TopicPartition], count: int, chance: random.Random, **settings: str) -> None:
    """So many records of every kind."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **settings})
    for _ in range(count):
        headers: Any = [(chance.choice(NAMES), some_bytes(chance, 500)) for _ in range(chance.choice([0, 0, 0, 1, 3]))]
        topic, partition = chance.choice(places)
        producer.produce(
            topic,
            some_bytes(chance, chance.choice([2_000, 100_000])),
            some_bytes(chance, 300),
            partition=partition,
            timestamp=chance.choice([1, 1_700_000_000_000, 2**43]),
            headers=headers or None,
        )
    assert producer.flush(30) == 0


def read(servers: str, starts: Mapping[TopicPartition, Cursor], seed: int) -> Found:
    """Everything behind these cursors, in turns that want some partitions only, and begin anew now and then."""
    chance, found = random.Random(seed), defaultdict[TopicPartition, list[tuple[dict[str, Any], int]]](list)
    ended: set[TopicPartition] = set()
    with closing(KafkaInput(KafkaConfig(servers, tuple(sorted({place.topic for place in starts}))))) as reads:
        reads.seek(starts, timeout_ms=10_000)
        while ended != starts.keys():
            wanted = chance.sample(sorted(starts), chance.randint(1, len(starts)))
            try:
                fetched = reads.fetch({place: chance.choice([1, 10, 1_000]) for place in wanted}, timeout_ms=100)
            except InputError:  # a busy machine: the planner tries again, too
                continue
            for chunk in fetched.chunks:
                found[chunk.partition] += zip(chunk.rows.to_pylist(), chunk.sizes.tolist(), strict=True)
            ended |= {place for place, lag in fetched.lags.items() if lag == 0}
            if chance.random() < 0.05:
                place = chance.choice(wanted)
                at = chance.randint(0, len(found[place]))
                del found[place][at:]
                cursor = Cursor(found[place][-1][0]["offset"], 0) if at else starts[place]
                reads.seek({place: cursor}, timeout_ms=10_000)
                ended.discard(place)
    return found


def is_same_both_ways(servers: str, places: list[TopicPartition], seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    with closing(KafkaInput(KafkaConfig(servers, (places[0].topic,)))) as asked:
        starts = asked.beginnings(places, timeout_ms=10_000)
    by_library = read(servers, starts, seed)
    with monkeypatch.context() as patch:
        patch.setattr(kafka_client, "native_library", lambda: None)
        as_objects = read(servers, starts, seed)
    assert sum(map(len, as_objects.values())) > 0
    return {**by_library} == {**as_objects}


def test_records_come_by_the_library_as_they_come_as_objects(mock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [f"t{uuid4().hex[:12]}" for _ in range(2)]
    places = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    write(mock, places, 800, random.Random(7))
    assert is_same_both_ways(mock, places, 7, monkeypatch)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(12))
def test_so_do_compressed_and_transactional_records_of_a_broker(
    broker: KafkaBroker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    topics = [broker.make_topic(PARTITIONS) for _ in range(2)]
    places = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    for _ in range(4):
        write(broker.servers, places, 1_500, chance, **{"compression.type": chance.choice(COMPRESSIONS)})
        transaction = begin_transaction(broker.servers, f"t{uuid4().hex}", chance.choice(places), [b"a", b"b"])
        transaction.abort_transaction() if chance.random() < 0.5 else transaction.commit_transaction()
    for place in chance.sample(places, 2):
        broker.delete_records(place, 5)
    assert is_same_both_ways(broker.servers, places, seed, monkeypatch)


def test_a_column_that_would_be_too_large_becomes_two(mock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's offsets have 32 bits. One record alone is always taken."""
    where = TopicPartition(f"t{uuid4().hex[:12]}", 0)
    values = [b"a" * 400, b"b" * 400, b"c" * 1_500, b"", b"d" * 900]
    producer = Producer({"bootstrap.servers": mock})
    for value in values:
        producer.produce(where.topic, value, partition=0)
    assert producer.flush(30) == 0
    monkeypatch.setattr(kafka_native, "MOST_COLUMN_BYTES", 1_000)
    with closing(KafkaInput(KafkaConfig(mock, (where.topic,)))) as reads:
        reads.seek({where: Cursor()}, timeout_ms=10_000)
        chunks: list[Chunk] = []
        while sum(chunk.rows.num_rows for chunk in chunks) < len(values):
            chunks += reads.fetch({where: 100}, timeout_ms=100).chunks
    assert [value for chunk in chunks for value in chunk.rows["value"].to_pylist()] == values
    assert all(chunk.rows.num_rows == 1 or chunk.rows["value"].nbytes < 1_100 for chunk in chunks)


def test_memory_comes_back_and_is_not_used_while_a_column_shows_it(mock: str) -> None:
    where = TopicPartition(f"t{uuid4().hex[:12]}", 0)
    producer = Producer({"bootstrap.servers": mock})
    values = [bytes([number]) * 90_000 for number in range(40)]
    for value in values:
        producer.produce(where.topic, value, partition=0)
    assert producer.flush(30) == 0
    with closing(KafkaInput(KafkaConfig(mock, (where.topic,)))) as reads:
        for _ in range(3):
            reads.seek({where: Cursor()}, timeout_ms=10_000)
            kept: list[pa.Array] = []
            while len(kept) < len(values):
                for chunk in reads.fetch({where: 3}, timeout_ms=100).chunks:
                    kept += [chunk.rows["value"].slice(at, 1) for at in range(chunk.rows.num_rows)]
            assert [value[0].as_py() for value in kept] == values
