"""Settled batches: what is known of the next batch before Spark asks for it is what `plan_batch` gives then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import queue, tp

from understudy_aligned.batch_plan import Batch, Queue, plan_batch
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition, effective_times_ms, partition_times_ms
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import settled_counts

FLIGHTS, WEATHER = tp("flights"), tp("weather")
TASKS = {task: [tp("flights", task), tp("weather", task)] for task in range(2)}
PARTITIONS = [each for partitions in TASKS.values() for each in partitions]
SOME = st.sets(st.sampled_from(PARTITIONS))


def effective(timestamps_ms: Sequence[int]) -> list[int]:
    """Effective times of records that begin a batch."""
    reached_ms = partition_times_ms(pa.array(timestamps_ms, pa.int64()), time_ms=NO_TIME_MS)
    return [int(at) for at in effective_times_ms(np.array(timestamps_ms, dtype=np.int64), reached_ms)]


def queues(logs: Mapping[TopicPartition, Sequence[int]]) -> dict[int, list[Queue]]:
    return {task: [queue(each, effective(logs[each])) for each in places] for task, places in TASKS.items()}


def one(**times_ms: Sequence[int]) -> dict[int, list[Queue]]:
    return {0: [queue(tp(topic), times) for topic, times in times_ms.items()]}


@given(
    fetched=st.fixed_dictionaries({each: st.lists(st.integers(0, 9), min_size=1, max_size=6) for each in PARTITIONS}),
    arrives=st.fixed_dictionaries({each: st.lists(st.integers(0, 9), max_size=6) for each in PARTITIONS}),
    lags=st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from([None, 0, 3])),
    deadlines=st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from([0.0, 50.0])),
    finished=SOME,
    records=st.integers(1, 6),
    ring=st.integers(0, 2),
    waits=st.sampled_from([(-1, None), (0, None), (20, None), (0, 0), (0, 4), (20, 4), (20, 100)]),
)
def test_a_settled_batch_is_the_one_that_is_planned_whatever_happens_until_then(
    *,
    fetched: Mapping[TopicPartition, list[int]],
    arrives: Mapping[TopicPartition, list[int]],
    lags: Mapping[TopicPartition, int | None],
    deadlines: Mapping[TopicPartition, float],
    finished: set[TopicPartition],
    records: int,
    ring: int,
    waits: tuple[int, int | None],
) -> None:
    """Records arrive in any partition and with any timestamp, inputs are given up on, end, or are unknown."""
    idle_ms, drift_ms = waits
    settled = settled_counts(queues(fetched), max_poll_records=records, ring=ring, max_drift_ms=drift_ms)
    event(f"settled: {settled is not None}")
    if settled is None:
        return

    def planned(logs: Mapping[TopicPartition, list[int]]) -> Batch:
        return plan_batch(
            queues(logs),
            lags,
            deadlines,
            AlignedOptions((), (), max_task_idle_ms=idle_ms, max_drift_ms=drift_ms, max_poll_records=records),
            finished=finished,
            ring=ring,
            now_ms=30.0,
        )

    later = planned({each: [*fetched[each], *arrives[each]] for each in PARTITIONS})
    assert list(later.taken.items()) == list(settled.items()), "in the same order, too"
    assert sum(settled.values()) == records
    assert later.ring == planned(fetched).ring
    assert not any(later.enforced.values())


@pytest.mark.parametrize(
    ("tasks", "records"),
    [
        pytest.param(one(flights=[1, 3, 5], weather=[2, 4]), -1, id="more records make a batch without a bound larger"),
        pytest.param(one(flights=[1, 3, 5], weather=[]), 2, id="an empty input may get a record that comes first"),
        pytest.param(one(flights=[1, 3, 9], weather=[2]), 3, id="behind the last record of an input nothing is known"),
        pytest.param(one(flights=[1, 2], weather=[3]), 4, id="a batch that is not full grows"),
        pytest.param(one(flights=[1, 2], weather=[3, 4]), 3, id="just a full batch would leave the ring where it is"),
        pytest.param(
            {0: [queue(tp("flights"), [1, 2, 3, 4, 5])], 1: [queue(tp("flights", 1), [1])]},
            4,
            id="a task that gives all it has may get more, and the other task then gives less",
        ),
        pytest.param({}, 1, id="no partitions are known yet"),
    ],
)
def test_what_may_still_change_is_not_settled(tasks: Mapping[int, Sequence[Queue]], records: int) -> None:
    assert settled_counts(tasks, max_poll_records=records, ring=0) is None
