"""Says what the query waits for: a server that is away, records that are not fetched yet, or a larger batch (pure)."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Set
from typing import NamedTuple

from understudy_aligned.idle import NEVER_WAIT, InputState
from understudy_aligned.inputs.records import TopicPartition


class PutOff(NamedTuple):
    """A batch that waits for more records."""

    records: int
    min_records: int
    left_ms: float
    """The time until it runs, however few records it has."""


def put_off(
    records: int, *, min_records: int, max_delay_ms: int, last_ms: float | None, is_full: bool, now_ms: float
) -> PutOff | None:
    """Decide whether a batch waits for more records (`minOffsetsPerTrigger` in Spark's Kafka source). None: it runs.

    `last_ms` is the time of the last batch. The first batch of a run (None) waits for nothing, as in Spark, nor does a
    batch that cannot grow because memory is full.
    """
    if not 0 < records < min_records or last_ms is None or is_full or now_ms >= last_ms + max_delay_ms:
        return None
    return PutOff(records, min_records, last_ms + max_delay_ms - now_ms)


def is_filling(held: float, lags: Iterable[float | None], *, full: float) -> bool:
    """Whether a batch becomes full by reading on: so much is held, and servers have the rest (`lags`)."""
    return held < full <= held + sum(lag or 0 for lag in lags)


def is_waited_for(
    topics: Container[str],
    inputs: Mapping[TopicPartition, InputState],
    *,
    max_task_idle_ms: int,
    topic_idle_ms: Mapping[str, int] = {},
    slowest: Set[TopicPartition] | None = None,
) -> bool:
    """Whether the query waits for a server that is away and has these topics. `inputs` are all partitions it reads.

    Nothing is read before the partitions of every topic are known. From then on a task waits for a partition of which
    every record is in a batch and whose lag is unknown: its next record may be the next of all. With an idle
    time of -1 it does not wait, and with `max_drift_ms` only for the `slowest` inputs, which hold others back.
    """
    if not inputs:
        return True
    return any(
        place.topic in topics and seen.empty and seen.lag is None and not seen.finished
        for place, seen in inputs.items()
        if topic_idle_ms.get(place.topic, max_task_idle_ms) != NEVER_WAIT and (slowest is None or place in slowest)
    )


def has_more(inputs: Mapping[TopicPartition, InputState], *, away: Collection[Container[str]]) -> bool:
    """Whether a batch is to be expected although nothing new is written. `away`: topics of servers that do not answer.

    A partition has unread records, or has not said yet whether it has any; or records are held back, which ends with
    `max_task_idle_ms` unless they wait for a server that is away.
    """
    is_held_back = not away and any(not seen.empty for seen in inputs.values())
    return is_held_back or any(
        not seen.finished and (seen.lag is None or seen.lag > 0)
        for place, seen in inputs.items()
        if not any(place.topic in topics for topics in away)
    )
