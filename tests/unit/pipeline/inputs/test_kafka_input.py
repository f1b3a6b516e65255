"""The Kafka input over messages that come in a given order. Real brokers and their faults: tests/integration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message

from understudy_aligned.inputs.kafka_client import Conversion, KafkaClient, KafkaConfig, Polled
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.kafka_rows import group_messages
from understudy_aligned.inputs.protocol import DataLostError, InputError
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def record(where: TopicPartition, offset: int) -> Message:
    return Message(
        topic=where.topic, partition=where.partition, offset=offset, value=b"v", timestamp=(TIMESTAMP_CREATE_TIME, 7)
    )


def failure(where: TopicPartition, code: int) -> Message:
    return Message(topic=where.topic, partition=where.partition, error=KafkaError(code))


class ScriptedClient:
    """Hands out these messages, a list for each turn. Logs begin at 0 and end at 5."""

    def __init__(self, *turns: list[Message]) -> None:
        self._turns = list(turns)
        self.assigned: list[Mapping[TopicPartition, int]] = []
        self.counts: list[int] = []
        """The most records of each turn."""

    def records(self, count: int, converted: Conversion, *, wait_s: float) -> Polled:
        self.counts.append(count)
        messages = self._turns.pop(0) if self._turns else []
        records, events = group_messages(messages)
        return Polled(converted(records), events, len(messages))

    def offsets(
        self, partitions: Collection[TopicPartition], which: int, *, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0 if which == -2 else 5)

    def known_ends(self, partitions: Collection[TopicPartition], *, timeout_ms: int) -> dict[TopicPartition, int]:
        return {}

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.assigned.append(dict(offsets))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is read ahead here."""

    resume = pause

    def take_connection_error(self) -> InputError | None:
        return None

    def unreachable_error(self, what: str, error: KafkaException | None = None) -> InputError:
        return InputError(what, where="script")


def started(client: ScriptedClient, *, starts: Mapping[TopicPartition, Cursor]) -> KafkaInput:
    reads = KafkaInput(KafkaConfig("script", tuple(sorted({each.topic for each in starts}))))
    reads._opened_client = cast(KafkaClient, client)
    reads.seek(starts, timeout_ms=0)
    return reads


def offsets(chunks: Sequence[Chunk]) -> list[int]:
    return [offset for chunk in chunks for offset in chunk.rows["ordinal"].to_pylist()]


@pytest.mark.parametrize(
    ("code", "raised"),
    [(KafkaError.OFFSET_OUT_OF_RANGE, DataLostError), (KafkaError.TOPIC_AUTHORIZATION_FAILED, InputError)],
    ids=["the position is gone", "another error"],
)
def test_statement_52_records_before_an_error_are_handed_out_and_the_error_comes_with_the_next_fetch(
    code: int, raised: type[Exception]
) -> None:
    """What was taken out of the client is not to be had again: an error at once would lose it."""
    again = failure(B, code)
    client = ScriptedClient([record(A, 0), record(A, 1), again], [again], [record(A, 2)])
    reads = started(client, starts={A: Cursor(), B: Cursor("8", 9)})
    wanted = {A: 10, B: 10}
    assert offsets(reads.fetch(wanted, timeout_ms=0).chunks) == [0, 1]
    with pytest.raises(raised):
        reads.fetch(wanted, timeout_ms=0)
    assert client.assigned == [{A: 0, B: 9}, {A: 2, B: 9}], "it is read again from where it failed"
    assert offsets(reads.fetch({A: 10}, timeout_ms=0).chunks) == [2]


def test_a_fetch_takes_the_sum_of_what_is_wanted_of_whichever_partitions_it_comes() -> None:
    many = [TopicPartition("a", number) for number in range(300)]
    of_one = [record(many[7], offset) for offset in range(1_000)]
    client = ScriptedClient(of_one)
    reads = started(client, starts=dict.fromkeys(many, Cursor()))
    assert offsets(reads.fetch(dict.fromkeys(many, 5), timeout_ms=0).chunks) == list(range(1_000))
    assert client.counts == [1 + 300 * 4]
