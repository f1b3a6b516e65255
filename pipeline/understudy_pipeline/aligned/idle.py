"""When an input that has nothing is given up on: `max.task.idle.ms` (KIP-353, KIP-695), as `PartitionGroup` does it.

Pure: the time is passed in, and so is what was known before. All inputs are judged in one pass, so that inputs that run
dry together are waited for together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from understudy_pipeline.inputs.records import TopicPartition

NEVER_WAIT = -1
"""As `max_task_idle_ms`: inputs are given up on at once, whatever is known of them."""


class InputState(NamedTuple):
    """An input at one moment."""

    empty: bool
    """Nothing is fetched that is not planned."""

    lag: int | None
    """Records behind what was fetched; None: unknown, or known too long ago."""

    finished: bool = False
    """It gives no more to this query, whatever its lag: the end that was set when the query started is reached."""


class IdleDecision(NamedTuple):
    """`deadlines` go into the next call: from when on each empty input is no longer waited for, on the caller's clock.

    `may_pass` are inputs that hold nobody up once they have nothing left, also those that still have something.
    """

    deadlines: Mapping[TopicPartition, float]
    may_pass: frozenset[TopicPartition]


def decide_idle(
    deadlines: Mapping[TopicPartition, float],
    observed: Mapping[TopicPartition, InputState],
    *,
    max_task_idle_ms: int,
    now_ms: float,
) -> IdleDecision:
    """What is known of every input by now.

    An input has a deadline for as long as it is seen empty and caught up (lag 0), counted from the first such moment.
    Data, a lag above 0 and an unknown lag end it: then it is waited for without limit. What is not observed is
    forgotten.
    """
    assert max_task_idle_ms >= NEVER_WAIT, "other negative values are refused with the options"
    if max_task_idle_ms == NEVER_WAIT:
        return IdleDecision({}, frozenset(observed))
    kept: dict[TopicPartition, float] = {}
    may_pass = {partition for partition, seen in observed.items() if seen.finished}
    for partition, seen in observed.items():
        if seen.finished or not _is_caught_up(seen):
            continue
        # What will be empty only then gets its deadline only then; no time at all has passed at once.
        deadline_ms = deadlines.get(partition, now_ms + max_task_idle_ms) if seen.empty else now_ms + max_task_idle_ms
        if deadline_ms <= now_ms:
            may_pass.add(partition)
        if seen.empty:
            kept[partition] = deadline_ms
    return IdleDecision(kept, frozenset(may_pass))


def _is_caught_up(seen: InputState) -> bool:
    """No number means "unknown", so one below 0, which Kafka's consumer can tell for a moment, is 0."""
    return seen.lag is not None and seen.lag <= 0
