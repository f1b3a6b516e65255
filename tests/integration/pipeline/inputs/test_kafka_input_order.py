"""The order over a real broker where an input was passed over: Kafka's, live, through a restart, and read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.reading import read_task
from understudy_aligned.stream import AlignedStream, Json

FOR_EVER_MS = 600_000
FUTURE_MS = 1_000_000_000
EVERY_MS = 300


class Row(NamedTuple):
    topic: str
    timestamp_ms: int


class LoggedQuery:
    """A query without Spark. It keeps its offsets, as Spark's log does, and all rows in the order of delivery."""

    def __init__(self, options: AlignedOptions) -> None:
        self._stream = AlignedStream(options)
        self.offsets: list[Json] = [self._stream.initial_offset()]
        self.rows: list[Row] = []
        self._options = options

    @contextmanager
    def running(self, *, max_task_idle_ms: int) -> Iterator[None]:
        """A run from where the last one ended."""
        self._options = replace(self._options, max_task_idle_ms=max_task_idle_ms)
        self._stream.stop()
        self._stream = AlignedStream(self._options)
        try:
            yield
        finally:
            self._stream.stop()

    def wait_for(self, row: Row) -> None:
        """Take batches until this row was in one."""
        wait_until(lambda: self._takes(row), what=f"{row}; so far {self.rows}")

    def replayed(self) -> list[Row]:
        """All batches once more, from the broker, by a process that planned none of them; sorted in one go."""
        stream = AlignedStream(self._options)
        rows = [row for ends in pairwise(self.offsets) for row in _read(stream, *ends)]
        stream.stop()
        return _in_order(rows)

    def _takes(self, row: Row) -> bool:
        end = self._stream.latest_offset(self.offsets[-1])
        if end != self.offsets[-1]:
            self.rows += _in_order(_read(self._stream, self.offsets[-1], end))
            self.offsets.append(end)
        return row in self.rows


def _read(stream: AlignedStream, start: Json, end: Json) -> list[dict[str, Any]]:
    return [row for task in stream.tasks(start, end) for rows in read_task(task) for row in rows.to_pylist()]


def _in_order(rows: list[dict[str, Any]]) -> list[Row]:
    rows.sort(key=lambda row: tuple(row["merge_order"].values()))
    return [Row(row["topic"], round(row["timestamp"].timestamp() * 1000)) for row in rows]


def topics(broker: KafkaBroker) -> tuple[TopicPartition, TopicPartition, LoggedQuery]:
    a, b = TopicPartition(broker.make_topic(), 0), TopicPartition(broker.make_topic(), 0)
    names = (a.topic, b.topic)
    options = AlignedOptions(inputs=(KafkaConfig(broker.servers, names),), topics=names, spool=None)
    return a, b, LoggedQuery(options)


def put(broker: KafkaBroker, where: TopicPartition, time_ms: int) -> Row:
    produce(broker.servers, where, [b"v"], first_time_ms=time_ms)
    return Row(where.topic, time_ms)


def test_statement_34_of_an_input_that_was_passed_over_the_next_record_is_judged_by_its_own_timestamp(
    broker: KafkaBroker,
) -> None:
    a, b, query = topics(broker)
    with query.running(max_task_idle_ms=0):
        first = put(broker, a, 100)
        query.wait_for(first)
    late, other = put(broker, a, 5), put(broker, b, 50)
    with query.running(max_task_idle_ms=0):
        query.wait_for(other)
    assert query.rows == query.replayed() == [first, late, other]


def test_statement_34_one_record_from_the_future_starves_nobody_and_a_replay_gives_the_same(
    broker: KafkaBroker,
) -> None:
    """The input with that record delivers each next one at once, although the other never falls silent."""
    a, b, query = topics(broker)
    with query.running(max_task_idle_ms=0):
        expected = [put(broker, b, 1)]
        query.wait_for(expected[0])
        expected.append(put(broker, a, FUTURE_MS))
        query.wait_for(expected[1])
    with query.running(max_task_idle_ms=FOR_EVER_MS):
        for number in range(1, 9):
            next_a, next_b = put(broker, a, EVERY_MS * number), put(broker, b, EVERY_MS * number + 1)
            query.wait_for(next_a)
            expected += [next_a, next_b]
    assert query.rows == query.replayed() == expected[:-1], "the last of b waits for a ninth of a"
