"""A range's reader without a broker: where it begins after a loss, and how long it waits for what it cannot see."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from confluent_kafka import Message

from understudy_aligned.inputs.kafka_client import EARLIEST, KafkaClient, KafkaConfig
from understudy_aligned.inputs.kafka_reader import KafkaRangeReader
from understudy_aligned.inputs.protocol import InputError, Range
from understudy_aligned.inputs.records import Cursor, TopicPartition

TP = TopicPartition("weather", 0)


class SilentBroker(KafkaClient):
    """Its log has some records, and after as many polls without one they come."""

    def __init__(self, *offsets: int, end: int, silent_polls: int) -> None:
        super().__init__("server", {})
        self._offsets, self._end, self._silent_polls = offsets, end, silent_polls
        self._position = 0
        self.is_hanging = False

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._position = offsets[TP]

    def unassign(self) -> None:
        self._position = self._end

    def messages(self, count: int, *, wait_s: float) -> list[Message]:
        self._silent_polls -= 1
        if self._silent_polls >= 0:
            return []
        found = [offset for offset in self._offsets if offset >= self._position]
        self._position = self._end
        return [Message(topic="weather", partition=0, offset=each, value=b"v", timestamp=(0, 5)) for each in found]

    def offsets(
        self, partitions: Collection[TopicPartition], which: int, *, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        if self.is_hanging:
            raise InputError("no answer", where="server")
        return {TP: min(self._offsets) if which == EARLIEST else self._end}


def reading(
    broker: SilentBroker, start: Cursor, end: Cursor, monkeypatch: pytest.MonkeyPatch, *, poll_timeout_ms: int = 60_000
) -> list[int]:
    monkeypatch.setattr("understudy_aligned.inputs.kafka_reader.KafkaClient", lambda *_: broker)
    config = KafkaConfig("server", ("weather",), request_timeout_ms=0, poll_timeout_ms=poll_timeout_ms)
    return [
        ordinal
        for rows in KafkaRangeReader(config).read(Range(TP, start, end))
        for ordinal in rows["ordinal"].to_pylist()
    ]


def test_aborted_records_that_take_longer_than_an_answer_are_waited_for_while_the_broker_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = SilentBroker(8, 9_000, end=9_001, silent_polls=50)
    assert reading(broker, Cursor("7", 8), Cursor("9000", 9_001), monkeypatch) == [8, 9_000]


@pytest.mark.parametrize("why", ["it hangs", "its log is too short", "the time for a record is over"])
def test_a_record_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    broker = SilentBroker(8, end=9 if why == "its log is too short" else 9_001, silent_polls=50)
    broker.is_hanging = why == "it hangs"
    limit_ms = 0 if why == "the time for a record is over" else 60_000
    with pytest.raises(InputError, match="brought no record of those up to offset 9000"):
        reading(broker, Cursor("7", 8), Cursor("9000", 9_001), monkeypatch, poll_timeout_ms=limit_ms)


def test_a_range_that_was_planned_across_a_loss_is_read_from_the_new_beginning_and_one_that_was_read_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for start, found in ((Cursor("29", 30), [0, 1, 4]), (Cursor("4", 5), [])):
        broker = SilentBroker(0, 1, 4, 6, end=7, silent_polls=0)
        assert reading(broker, start, Cursor("4", 5), monkeypatch) == found
