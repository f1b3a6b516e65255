"""KIP-770, pure: which input is paused, and what one fetch may bring."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.prefetch_bench import Bench

from understudy_aligned.inputs.kafka_reader import records_in_all
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.options import MIB, AlignedOptions
from understudy_aligned.partition_buffer import Retained
from understudy_aligned.read_ahead import (
    FETCHES_PER_BOUND,
    fetch_bytes,
    fetch_records,
    paused_partitions,
)

A0, A1, B0, B1 = (TopicPartition(topic, p) for topic in "ab" for p in range(2))
TASKS = {0: (A0, B0), 1: (A1, B1)}


def holding(size_bytes: int, records: int) -> Retained:
    held = Retained(A0, Cursor())
    held.bytes, held.records = size_bytes, records
    return held


def paused(
    held: Mapping[TopicPartition, Retained], *, max_bytes: int = 200, records: int | None = None
) -> frozenset[TopicPartition]:
    return paused_partitions(held, TASKS, max_bytes=max_bytes, max_records_per_partition=records)


def test_statement_39_a_partition_goes_on_at_the_bound_or_anywhere_below_it() -> None:
    assert paused({A0: holding(1, 1_001)}, records=1_000) == {A0}
    assert paused({A0: holding(1, 1_000)}, records=1_000) == frozenset()
    assert paused({A0: holding(1, 990)}, records=1_000) == frozenset(), "stepped over the bound itself"


def test_statement_56_the_bound_is_512_mib_and_shared_evenly_between_tasks() -> None:
    assert AlignedOptions(inputs=(), topics=()).input_buffer_max_bytes == 512 * MIB
    three = {**TASKS, 2: (TopicPartition("a", 2),)}
    assert paused_partitions({A0: holding(100, 1), A1: holding(101, 1)}, three, max_bytes=300) == {A1}
    assert paused_partitions({A0: holding(100, 1)}, {}, max_bytes=300) == frozenset(), "while no task is known"


def test_statement_56_the_share_is_another_once_there_are_other_tasks() -> None:
    held = {A0: holding(150, 1)}
    assert paused_partitions(held, {0: (A0,)}, max_bytes=200) == frozenset()
    assert paused_partitions(held, {0: (A0,), 1: (A1,)}, max_bytes=200) == {A0}


def test_statement_58_more_than_the_share_pauses_and_just_the_share_does_not() -> None:
    assert paused({A0: holding(60, 1), B0: holding(40, 1)}) == frozenset()
    assert paused({A0: holding(60, 1), B0: holding(41, 1)}) == {A0, B0}


def test_statement_58_only_partitions_that_hold_data_are_paused() -> None:
    assert paused({A0: holding(900, 9), B0: holding(0, 0)}) == {A0}


def test_statement_59_a_partition_that_became_empty_or_is_no_more_is_not_paused() -> None:
    assert paused({A0: holding(900, 9), B0: holding(5, 1)}) == {A0, B0}
    assert paused({A0: holding(900, 9), B0: holding(0, 0)}) == {A0}
    assert paused_partitions({A0: holding(900, 9)}, {1: (A1, B1)}, max_bytes=200) == frozenset()


@given(
    tasks=st.integers(1, 6),
    size=st.sampled_from([1, 30, 200, 20_000]),
    bound=st.integers(2, 20_000),
    turns=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 63)), max_size=30),
)
def test_all_tasks_hold_at_most_the_bound_and_one_fetch_whichever_partition_a_fetch_brings(
    tasks: int, size: int, bound: int, turns: list[tuple[int, int]]
) -> None:
    """A turn is the partition of which all records of a fetch are, and as bits the partitions that a batch empties."""
    of_task = {p: (TopicPartition("a", p), TopicPartition("b", p)) for p in range(tasks)}
    records = dict.fromkeys((tp for partitions in of_task.values() for tp in partitions), 0)
    for chosen, going in turns:
        held = {tp: holding(count * size, count) for tp, count in records.items()}
        wanted = sorted(records.keys() - paused_partitions(held, of_task, max_bytes=bound))
        room = fetch_bytes(bound, held=sum(each.bytes for each in held.values())) / len(records)
        counts = [fetch_records(room=room, record_bytes=size, held=0, max_poll_records=-1) for _ in wanted]
        if wanted:
            records[wanted[chosen % len(wanted)]] += records_in_all(counts)
        assert sum(records.values()) * size <= bound + bound // FETCHES_PER_BOUND + size * len(records)
        records = {tp: 0 if going >> at & 1 else count for at, (tp, count) in enumerate(records.items())}


@pytest.mark.parametrize(
    ("record_bytes", "held", "max_poll_records", "wanted"),
    [
        pytest.param(None, 0, -1, 1, id="size-unknown-and-little-room"),
        pytest.param(10.0, 0, -1, 12, id="what-there-is-room-for"),
        pytest.param(0.0, 0, -1, 125, id="no-size-at-all"),
        pytest.param(5_000.0, 0, -1, 1, id="one-record-larger-than-everything"),
        pytest.param(10.0, 7, 8, 12, id="a-whole-fetch-for-less-than-the-largest-batch"),
        pytest.param(10.0, 8, 8, 0, id="enough-for-the-largest-batch"),
        pytest.param(10.0, 0, 1, 12, id="a-whole-fetch-for-batches-of-one"),
    ],
)
def test_a_fetch_counts_with(record_bytes: float | None, held: int, max_poll_records: int, wanted: int) -> None:
    found = fetch_records(room=125, record_bytes=record_bytes, held=held, max_poll_records=max_poll_records)
    assert found == wanted


@pytest.mark.parametrize(
    ("lag", "most", "filling"),
    [
        pytest.param(2_000, -1, True, id="what the server has fills memory"),
        pytest.param(3, -1, False, id="it does not"),
        pytest.param(2_000, 500, True, id="it fills the largest batch"),
        pytest.param(400, 500, False, id="it does not fill that"),
    ],
)
def test_a_batch_of_a_backlog_fills_up_to_its_bound_or_else_memory(lag: int, most: int, filling: bool) -> None:
    bench = Bench("a", options=AlignedOptions((), (), max_poll_records=most, input_buffer_max_bytes=100_000)).ready()
    bench.server.put("a", 0, 1)
    bench.turns(1)
    bench.shared.ahead.lags.update({A0: lag}, asked_ms=bench.clock.monotonic_ms())
    assert bench.shared.ahead.is_filling(bench.clock.monotonic_ms()) is filling
