"""The ranges of a batch, packed into the tasks that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.reading import (
    TASK_BYTES,
    PlannedRange,
    pack_tasks,
    planned_ranges,
)


def options_for(topics: tuple[str, ...], **changed: object) -> AlignedOptions:
    config = ScriptedServer(dict.fromkeys(topics, 100)).config
    return replace(AlignedOptions(inputs=(config,), topics=topics), **changed)  # type: ignore[arg-type]


def spans(topics: Sequence[str], partitions: int) -> list[Range]:
    return [Range(TopicPartition(t, p), Cursor(), Cursor("0", 1)) for t in topics for p in range(partitions)]


@given(
    sizes=st.lists(st.integers(0, 5 * TASK_BYTES), max_size=12),
    tasks=st.integers(1, 5),
    merge=st.sampled_from(["task", "global"]),
)
def test_every_range_is_read_once_by_no_more_tasks_than_allowed(sizes: list[int], tasks: int, merge: str) -> None:
    options = options_for(("a", "b"), reader_tasks=tasks, merge=merge)
    ranges = planned_ranges(options, spans(("a", "b"), 6)[: len(sizes)], sizes=sizes)
    packed = pack_tasks(ranges, options, batch=1)
    assert len(packed) <= tasks
    assert all(task.ranges for task in packed)
    assert sorted(each.span for task in packed for each in task.ranges) == sorted(each.span for each in ranges)
    sums = [sum(each.bytes for each in task.ranges) for task in packed]
    biggest = max((sum(s for s, r in zip(sizes, ranges, strict=True) if _together(r, of)) for of in ranges), default=0)
    assert not sums or max(sums) - min(sums) <= max(biggest, max(sums) if len(packed) == 1 else 0)


def _together(one: PlannedRange, other: PlannedRange) -> bool:
    return one.span.partition.partition == other.span.partition.partition


def test_what_is_merged_together_is_read_together() -> None:
    options = options_for(("a", "b"), reader_tasks=2)
    packed = pack_tasks(planned_ranges(options, spans(("a", "b"), 4), sizes=[TASK_BYTES] * 8), options, batch=1)
    assert len(packed) == 2
    for task in packed:
        places = [each.span.partition for each in task.ranges]
        assert all(TopicPartition(topic, place.partition) in places for place in places for topic in ("a", "b"))


@given(sizes=st.lists(st.integers(TASK_BYTES // 2, TASK_BYTES), min_size=48, max_size=99), tasks=st.integers(1, 3))
def test_neighbours_among_many_small_ranges_stay_together(sizes: list[int], tasks: int) -> None:
    options = options_for(("a",), reader_tasks=tasks)
    ranges = planned_ranges(options, spans(("a",), len(sizes)), sizes=sizes)
    packed = pack_tasks(ranges, options, batch=1)
    assert [each for task in packed for each in task.ranges] == ranges
    sums = [sum(each.bytes for each in task.ranges) for task in packed]
    assert len(sums) == tasks
    assert max(sums) - min(sums) <= 2 * max(sizes)


def test_a_small_batch_is_one_task() -> None:
    options = options_for(("a", "b"), reader_tasks=8)
    assert len(pack_tasks(planned_ranges(options, spans(("a", "b"), 4), sizes=[1000] * 8), options, batch=1)) == 1
    assert pack_tasks([], options, batch=1) == []
