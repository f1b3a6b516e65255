"""`current_lag` (KIP-695): what is known about records that were not fetched yet, and for how long it is worth knowing.

Kafka's consumer keeps the last answer for ever and below 0 too. Here an answer has an age, grows old, and is forgotten
when the server it came from failed since: then the lag is unknown, which is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from understudy_pipeline.inputs.records import TopicPartition


class Lag(NamedTuple):
    """`records` lay behind what was fetched, by an answer that is at most `age_ms` old."""

    records: int
    age_ms: float


class Lags:
    """The last answers, each with the time of its question: no answer is older than it seems."""

    def __init__(self, max_age_ms: float) -> None:
        self._max_age_ms = max_age_ms
        self._answers: dict[TopicPartition, tuple[int, float]] = {}

    def update(self, lags: Mapping[TopicPartition, int], *, asked_ms: float) -> None:
        """Of a turn that began at `asked_ms`. Partitions without an entry keep what was known of them."""
        self._answers.update((partition, (max(0, lag), asked_ms)) for partition, lag in lags.items())

    def subtract_fetched(self, partition: TopicPartition, records: int) -> None:
        """So many more were fetched: an answer that knew of fewer says nothing of what is behind them."""
        if partition in self._answers:
            lag, asked_ms = self._answers.pop(partition)
            if lag >= records:
                self._answers[partition] = lag - records, asked_ms

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """After a failed turn or a seek, and of partitions that are no more."""
        for partition in partitions:
            self._answers.pop(partition, None)

    def current(self, partition: TopicPartition, now_ms: float) -> Lag | None:
        """None when it is unknown. Asks nobody."""
        records, asked_ms = self._answers.get(partition, (0, None))
        if asked_ms is None or now_ms - asked_ms > self._max_age_ms:
            return None
        return Lag(records, now_ms - asked_ms)
