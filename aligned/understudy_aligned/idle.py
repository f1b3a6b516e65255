"""The wait of a task for an empty input: `max.task.idle.ms` (KIP-353, KIP-695), as in `PartitionGroup`.

Pure: the time and the previous deadlines are passed in. All inputs are decided in one pass, so that waits for several
empty inputs overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from understudy_aligned.inputs.records import TopicPartition

NEVER_WAIT = -1
"""Value of `max_task_idle_ms`: never wait for an empty input, whatever its lag."""


class InputState(NamedTuple):
    """The state of one input (a partition) when a batch is planned."""

    empty: bool
    """Every fetched record is in a batch."""

    lag: int | None
    """Records on the server that are not fetched. None: unknown, or the answer is too old."""

    finished: bool = False
    """The query's end of this input is reached (AvailableNow): nothing more will be read, whatever the lag."""


class IdleDecision(NamedTuple):
    """Pass `deadlines` to the next call: the time on the caller's clock when the wait for each empty input ends.

    `may_pass` are the inputs that do not block their task once their queue runs empty. They may still have records.
    """

    deadlines: Mapping[TopicPartition, float]
    may_pass: frozenset[TopicPartition]


def decide_idle(
    deadlines: Mapping[TopicPartition, float],
    observed: Mapping[TopicPartition, InputState],
    *,
    max_task_idle_ms: int,
    topic_idle_ms: Mapping[str, int] = {},
    now_ms: float,
) -> IdleDecision:
    """Decide which inputs may run empty without blocking their task. A topic in `topic_idle_ms` has its own idle time.

    An input has a deadline while it is empty and caught up (lag 0), counted from the first such call. Data, a lag above
    0 or an unknown lag remove the deadline, and the task then waits without limit. Inputs that are not in `observed`
    lose their deadline.
    """
    kept: dict[TopicPartition, float] = {}
    may_pass = set[TopicPartition]()
    for partition, seen in observed.items():
        idle_ms = topic_idle_ms.get(partition.topic, max_task_idle_ms)
        assert idle_ms >= NEVER_WAIT, "other negative values are refused with the options"
        if seen.finished or idle_ms == NEVER_WAIT:
            may_pass.add(partition)
        elif _is_caught_up(seen):
            # An input that still has records starts its wait when it runs empty: until then its deadline moves with
            # the clock. With an idle time of 0 that deadline has passed already.
            deadline_ms = deadlines.get(partition, now_ms + idle_ms) if seen.empty else now_ms + idle_ms
            if deadline_ms <= now_ms:
                may_pass.add(partition)
            if seen.empty:
                kept[partition] = deadline_ms
    return IdleDecision(kept, frozenset(may_pass))


def _is_caught_up(seen: InputState) -> bool:
    """Unknown is None, never a number. Kafka's consumer can report a lag below 0 for a moment: that counts as 0."""
    return seen.lag is not None and seen.lag <= 0
