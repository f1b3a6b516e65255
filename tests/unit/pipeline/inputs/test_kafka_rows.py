"""librdkafka's messages become columns without losing what they say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
)
from hypothesis import given
from hypothesis import strategies as st

from understudy_aligned.inputs.kafka_client import Conversion, KafkaClient, KafkaConfig, Polled
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.kafka_rows import group_messages, to_chunk, to_chunks
from understudy_aligned.inputs.protocol import DataLostError, InputError
from understudy_aligned.inputs.records import ROW_SCHEMA, Chunk, Cursor, TopicPartition, record_size
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules

WHERE = TopicPartition("wetter-ä", 3)
TIME_MS = 1_700_000_000_000


def message(offset: int, value: bytes | None = b"v", *, where: TopicPartition = WHERE, **more: Any) -> Message:
    given = {"timestamp": (TIMESTAMP_CREATE_TIME, TIME_MS), **more}
    return Message(topic=where.topic, partition=where.partition, offset=offset, value=value, **given)


def test_keys_values_headers_and_nulls_arrive_as_they_were() -> None:
    headers = [("a", b"1"), ("a", None)]
    messages = [message(7, None, key=None), message(9, b"", key=b"k", headers=headers)]
    rows = to_chunk(WHERE, messages, TimestampRule(), include_headers=True).rows
    assert rows.schema == ROW_SCHEMA
    assert rows.to_pylist() == [
        {"offset": "7", "ordinal": 7, "timestamp_ms": TIME_MS, "key": None, "value": None, "headers": None}
        | {"timestamp_type": 0},
        {
            "offset": "9",
            "ordinal": 9,
            "timestamp_ms": TIME_MS,
            "key": b"k",
            "value": b"",
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
            "timestamp_type": 0,
        },
    ]


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=9),
            st.none() | st.binary(max_size=9),
            st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=3), st.none() | st.binary(max_size=3))),
        ),
        min_size=1,
    )
)
def test_sizes_are_those_of_kip_770(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    messages = [message(0, value, key=key, headers=headers) for key, value, headers in records]
    sizes = to_chunk(WHERE, messages, TimestampRule(), include_headers=False).sizes
    expected = [
        record_size(WHERE.topic, key, value, sum(len(name.encode()) + len(value or b"") for name, value in headers))
        for key, value, headers in records
    ]
    assert sizes.tolist() == expected


@pytest.mark.parametrize(
    "timestamp",
    [(TIMESTAMP_NOT_AVAILABLE, -1), (TIMESTAMP_CREATE_TIME, -1), (TIMESTAMP_CREATE_TIME, 2**62)],
    ids=["none", "below 1970", "beyond Spark's years"],
)
def test_a_record_without_a_usable_time_is_a_poison_record(timestamp: tuple[int, int]) -> None:
    rows = to_chunk(WHERE, [message(0, timestamp=timestamp), message(1)], TimestampRule(), include_headers=False).rows
    assert rows["timestamp_ms"].to_pylist() == [None, TIME_MS]


def test_timestamp_types_are_those_of_spark() -> None:
    stamps = [(TIMESTAMP_NOT_AVAILABLE, -1), (TIMESTAMP_CREATE_TIME, TIME_MS), (TIMESTAMP_LOG_APPEND_TIME, TIME_MS)]
    messages = [message(index, timestamp=stamp) for index, stamp in enumerate(stamps)]
    rows = to_chunk(WHERE, messages, TimestampRule(), include_headers=False).rows
    assert rows["timestamp_type"].to_pylist() == [-1, 0, 1]


def test_a_time_may_come_from_a_field_of_the_value() -> None:
    messages = [message(0, b'{"at": 5}'), message(1, b"{"), message(2, None)]
    rows = to_chunk(WHERE, messages, TimestampRule("json", "at"), include_headers=False).rows
    assert rows["timestamp_ms"].to_pylist() == [5, None, None]


def test_a_time_may_come_from_a_header_whether_headers_are_delivered_or_not() -> None:
    messages = [message(0, headers=[("at", b"5")]), message(1)]
    rows = to_chunk(WHERE, messages, TimestampRule("header", "at"), include_headers=False).rows
    assert rows["timestamp_ms"].to_pylist() == [5, None]
    assert rows["headers"].to_pylist() == [None, None]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.booleans()), max_size=40))
def test_each_record_comes_under_its_partition_in_order_and_events_apart(marks: list[tuple[str, int, bool]]) -> None:
    messages = [
        message(index, where=TopicPartition(topic, partition), error=KafkaError(1) if is_event else None)
        for index, (topic, partition, is_event) in enumerate(marks)
    ]
    records, events = group_messages(messages)
    assert [event.offset for event in events] == [index for index, mark in enumerate(marks) if mark[2]]
    found = {where: [one.offset() for one in some] for where, some in records.items()}
    assert found == {
        TopicPartition(topic, partition): [
            index for index, mark in enumerate(marks) if mark == (topic, partition, False)
        ]
        for topic, partition, is_event in marks
        if not is_event
    }


@pytest.mark.parametrize("most", [1 << 30, 0], ids=["sharing columns", "too large to share them"])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.none() | st.binary(max_size=3)), max_size=30))
def test_partitions_of_one_fetch_become_the_chunks_that_each_becomes_alone(
    most: int, records: list[tuple[str, int, bytes | None]]
) -> None:
    messages = [
        message(number, value, where=TopicPartition(topic, partition), headers=[("at", b"5")] if number % 3 else None)
        for number, (topic, partition, value) in enumerate(records)
    ]
    rules = TimestampRules(own=(("a", TimestampRule("header", "at")), ("b", TimestampRule("json", "at"))))
    found, _ = group_messages(messages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("understudy_aligned.inputs.kafka_rows.MOST_COLUMN_BYTES", most)
        together = to_chunks(found, rules, include_headers=True)
    alone = [to_chunk(where, some, rules.of(where.topic), include_headers=True) for where, some in found.items()]
    assert [chunk.partition for chunk in together] == [chunk.partition for chunk in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.rows == other.rows
        assert one.sizes.tolist() == other.sizes.tolist()


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
        return converted(records), events, len(messages)

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
