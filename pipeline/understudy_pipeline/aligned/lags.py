"""`current_lag` (KIP-695): how many records a server has that are not fetched yet, and how old that answer is.

Kafka's consumer keeps its last answer for ever, also one below 0. Here an answer expires, and is dropped when its
server fails. Then the lag is unknown, which is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from understudy_pipeline.inputs.records import TopicPartition


class Lag(NamedTuple):
    """`records` were not fetched yet, by an answer that is at most `age_ms` old."""

    records: int
    age_ms: float


class Lags:
    """Last answer for each partition. Its age counts from the request, so it is never older than its age says."""

    def __init__(self, max_age_ms: float) -> None:
        self._max_age_ms = max_age_ms
        self._answers: dict[TopicPartition, tuple[int, float]] = {}

    def update(self, lags: Mapping[TopicPartition, int], *, asked_ms: float) -> None:
        """Store the lags of an answer to a request sent at `asked_ms`. Other partitions keep their last answer."""
        self._answers.update((partition, (max(0, lag), asked_ms)) for partition, lag in lags.items())

    def subtract_fetched(self, partition: TopicPartition, records: int) -> None:
        """Subtract fetched records from the lag. If the answer counted fewer than that, the lag becomes unknown."""
        if partition in self._answers:
            lag, asked_ms = self._answers.pop(partition)
            if lag >= records:
                self._answers[partition] = lag - records, asked_ms

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Make lags unknown: after a failed request, after a seek, and for partitions that no longer exist."""
        for partition in partitions:
            self._answers.pop(partition, None)

    def current(self, partition: TopicPartition, now_ms: float) -> Lag | None:
        """Return the last known lag, None if unknown. Does no I/O."""
        records, asked_ms = self._answers.get(partition, (0, None))
        if asked_ms is None or now_ms - asked_ms > self._max_age_ms:
            return None
        return Lag(records, now_ms - asked_ms)
