"""KIP-770, pure: which input is paused, and what one fetch may bring."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_pipeline.aligned.memory import (
    FETCHES_PER_SHARE,
    MAX_FETCH_RECORDS,
    UNKNOWN_RECORD_BYTES,
    Buffered,
    fetch_records,
    paused_partitions,
    share_bytes,
)
from understudy_pipeline.aligned.options import MIB, AlignedOptions
from understudy_pipeline.inputs.records import TopicPartition

A0, A1, B0, B1 = (TopicPartition(topic, p) for topic in "ab" for p in range(2))
TASKS = {0: (A0, B0), 1: (A1, B1)}


def paused(
    held: Mapping[TopicPartition, Buffered], *, max_bytes: int = 200, records: int | None = None
) -> frozenset[TopicPartition]:
    return paused_partitions(held, TASKS, max_bytes=max_bytes, max_records_per_partition=records)


def test_statement_39_a_partition_goes_on_at_the_bound_or_anywhere_below_it() -> None:
    assert paused({A0: Buffered(1, 1_001)}, records=1_000) == {A0}
    assert paused({A0: Buffered(1, 1_000)}, records=1_000) == frozenset()
    assert paused({A0: Buffered(1, 990)}, records=1_000) == frozenset(), "stepped over the bound itself"


def test_statement_56_the_bound_is_512_mib_and_shared_evenly_between_tasks() -> None:
    assert AlignedOptions(inputs=(), topics=()).input_buffer_max_bytes == 512 * MIB
    assert share_bytes(300, 3) == 100
    assert share_bytes(300, 0) == 300, "while no task is known"


def test_statement_56_the_share_is_another_once_there_are_other_tasks() -> None:
    held = {A0: Buffered(150, 1)}
    assert paused_partitions(held, {0: (A0,)}, max_bytes=200) == frozenset()
    assert paused_partitions(held, {0: (A0,), 1: (A1,)}, max_bytes=200) == {A0}


def test_statement_58_more_than_the_share_pauses_and_just_the_share_does_not() -> None:
    assert paused({A0: Buffered(60, 1), B0: Buffered(40, 1)}) == frozenset()
    assert paused({A0: Buffered(60, 1), B0: Buffered(41, 1)}) == {A0, B0}


def test_statement_58_only_partitions_that_hold_data_are_paused() -> None:
    assert paused({A0: Buffered(900, 9), B0: Buffered(0, 0)}) == {A0}


def test_a_task_over_its_share_does_not_pause_another() -> None:
    assert paused({A0: Buffered(900, 9), A1: Buffered(100, 1)}) == {A0}


def test_statement_59_a_partition_that_became_empty_or_is_no_more_is_not_paused() -> None:
    assert paused({A0: Buffered(900, 9), B0: Buffered(5, 1)}) == {A0, B0}
    assert paused({A0: Buffered(900, 9), B0: Buffered(0, 0)}) == {A0}
    assert paused_partitions({A0: Buffered(900, 9)}, {1: (A1, B1)}, max_bytes=200) == frozenset()


HELD = st.builds(lambda size, records: Buffered(size * bool(records), records), st.integers(0, 500), st.integers(0, 5))


@given(held=st.fixed_dictionaries(dict.fromkeys((A0, A1, B0, B1), HELD)), bound=st.integers(1, 1_000))
def test_no_empty_partition_is_ever_paused(held: dict[TopicPartition, Buffered], bound: int) -> None:
    empty = {tp for tp, each in held.items() if not each.records}
    assert not paused(held, max_bytes=bound, records=2) & empty


@given(
    sizes=st.lists(st.sampled_from([1, 30, 200, 20_000]), min_size=1, max_size=6),
    bound=st.integers(2, 20_000),
    turns=st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), max_size=20),
)
def test_a_task_holds_at_most_its_share_and_one_fetch_of_each_partition(
    sizes: list[int], bound: int, turns: list[tuple[int, int]]
) -> None:
    """A turn is two sets of partitions, as bits: of which records came, and of which some went into a batch."""
    partitions = tuple(TopicPartition("t", p) for p in range(len(sizes)))
    most = sum(max(size, bound / (FETCHES_PER_SHARE * len(partitions))) for size in sizes)
    records = [0] * len(sizes)
    for coming, going in turns:
        held = {tp: Buffered(records[tp.partition] * sizes[tp.partition], records[tp.partition]) for tp in partitions}
        resting = paused_partitions(held, {0: partitions}, max_bytes=bound)
        for tp in partitions:
            if coming >> tp.partition & 1 and tp not in resting:
                records[tp.partition] += fetch_records(
                    share=bound,
                    partitions=len(partitions),
                    record_bytes=sizes[tp.partition],
                    held=records[tp.partition],
                    max_poll_records=-1,
                )
        assert sum(count * size for count, size in zip(records, sizes, strict=True)) <= bound + most
        records = [count // 2 if going >> p & 1 else count for p, count in enumerate(records)]


@pytest.mark.parametrize(
    ("record_bytes", "held", "max_poll_records", "wanted"),
    [
        pytest.param(None, 0, -1, 1, id="size-unknown-and-little-room"),
        pytest.param(10.0, 0, -1, 12, id="a-quarter-of-the-share-over-two-partitions"),
        pytest.param(0.0, 0, -1, 125, id="no-size-at-all"),
        pytest.param(5_000.0, 0, -1, 1, id="one-record-larger-than-everything"),
        pytest.param(10.0, 7, 8, 12, id="a-whole-fetch-for-less-than-the-largest-batch"),
        pytest.param(10.0, 8, 8, 0, id="enough-for-the-largest-batch"),
        pytest.param(10.0, 0, 1, 12, id="a-whole-fetch-for-batches-of-one"),
    ],
)
def test_a_fetch_brings(record_bytes: float | None, held: int, max_poll_records: int, wanted: int) -> None:
    found = fetch_records(
        share=1_000, partitions=2, record_bytes=record_bytes, held=held, max_poll_records=max_poll_records
    )
    assert found == wanted


def test_a_fetch_brings_one_chunk_at_most() -> None:
    found = fetch_records(share=1 << 40, partitions=1, record_bytes=1.0, held=0, max_poll_records=-1)
    assert found == MAX_FETCH_RECORDS


def test_a_first_fetch_counts_with_large_records() -> None:
    share = 80 * UNKNOWN_RECORD_BYTES
    assert fetch_records(share=share, partitions=2, record_bytes=None, held=0, max_poll_records=-1) == 10
