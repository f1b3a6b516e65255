"""What is retained of one partition: order, sizes and the cursor, however it came and is taken."""

from __future__ import annotations

import tracemalloc
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.spark.scripted_input import ScriptedRecord, chunk_of

from understudy_aligned.inputs.records import (
    NO_TIME_MS,
    RECORD_OVERHEAD_BYTES,
    Chunk,
    Cursor,
    TopicPartition,
    record_size,
)
from understudy_aligned.partition_buffer import Retained, copy_out

TP = TopicPartition("weather", 0)
BEGINNING = Cursor()


def retained(*chunks: list[int | None], cursor: Cursor = BEGINNING, max_jump_ms: int | None = None) -> Retained:
    held = Retained(TP, cursor, max_jump_ms=max_jump_ms)
    first = cursor.ordinal
    for times_ms in chunks:
        held.add(chunk_of(TP, [ScriptedRecord(time_ms) for time_ms in times_ms], first=first))
        first += len(times_ms)
    return held


def times(held: Retained) -> list[int]:
    return held.queue(0).times_ms.tolist()  # type: ignore[no-any-return]


def test_times_are_effective_and_begin_anew_behind_the_cursor() -> None:
    held = retained([3, 9], [7, None, 12], cursor=Cursor("4", 5, 6))
    assert times(held) == [3, 9, 9, 9, 12]
    segment = held.take(3)
    assert segment.times_ms.tolist() == [3, 9, 9]
    assert held.cursor.time_ms == 9
    assert times(held) == [NO_TIME_MS, 12]


def test_a_record_from_the_future_holds_up_its_partition_by_a_jump_at_most() -> None:
    held = retained([0, 10**6, 300], max_jump_ms=1_000)
    assert times(held) == [0, 1_000, 1_000]
    held.take(2)
    assert times(held) == [300]


def test_what_is_taken_is_a_range_and_the_cursor_stands_behind_it() -> None:
    held = retained([1, 2, 3], [4, 5])
    segment = held.take(4)
    assert segment.span.start == Cursor()
    assert segment.span.end == held.cursor == Cursor("3", 4, 4)
    assert times(held) == [5]
    assert held.take(1).span == (TP, Cursor("3", 4, 4), Cursor("4", 5, 5))
    assert (len(held), held.bytes) == (0, 0)


def test_poison_keeps_its_place_and_takes_the_partitions_time() -> None:
    held = retained([None, 5, None])
    assert times(held) == [NO_TIME_MS, 5, 5]
    assert held.first_refused(1) == 0
    assert held.take(1).span.end == Cursor("0", 1, NO_TIME_MS)
    assert held.first_refused(1) is None
    assert held.first_refused(2) == 1
    assert held.offset(1) == "2"
    assert held.take(2).timestamps_ms.tolist() == [5, NO_TIME_MS]


def test_poison_that_is_given_its_partitions_time_has_it_after_a_batch_too_and_is_refused_where_there_is_none() -> None:
    held = Retained(TP, BEGINNING, undecodable="partition-time")
    held.add(chunk_of(TP, [ScriptedRecord(time_ms) for time_ms in (None, 5, 3, None)], first=0))
    assert held.first_refused(4) == 0
    held.take(2)
    assert times(held) == [3, 5], "not NO_TIME_MS, which would let it pass all others"
    assert held.first_refused(2) is None
    held.take(1)
    assert times(held) == [5]
    assert held.take(1).timestamps_ms.tolist() == [NO_TIME_MS], "and it is counted"


def test_statement_57_a_records_size_counts_a_missing_key_and_value_as_0() -> None:
    overhead = RECORD_OVERHEAD_BYTES
    assert record_size("weather", None, None) == 8 + 8 + 4 + len("weather") + overhead
    assert record_size("wéather", b"k", b"vv", 7) == 20 + len("wéather".encode()) + 3 + 7 + overhead
    held = retained([1, 2])
    assert held.bytes == 2 * record_size("weather", None, None)
    assert held.take(1).bytes == held.bytes == record_size("weather", None, None)


@pytest.mark.parametrize("records", [30, 300, 10_000])
def test_small_records_are_counted_with_about_the_memory_that_they_take(records: int) -> None:
    held = Retained(TP, Cursor())
    tracemalloc.start()  # NumPy's arrays; Arrow counts its own
    before, arrow = tracemalloc.get_traced_memory()[0], 0
    for first in range(0, 5 * records, records):
        held.add(chunk := chunk_of(TP, [ScriptedRecord(9, bytes(10))] * records, first=first))
        arrow += chunk.rows.get_total_buffer_size()
    del chunk
    taken = tracemalloc.get_traced_memory()[0] - before + arrow
    tracemalloc.stop()
    assert 0.5 < held.bytes / taken < 2


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.lists(st.none() | st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=5),
    data=st.data(),
)
def test_records_come_out_once_each_in_order_however_they_are_taken(
    chunks: list[list[int | None]], data: st.DataObject
) -> None:
    held = Retained(TP, Cursor())
    everything = [NO_TIME_MS if time_ms is None else time_ms for chunk in chunks for time_ms in chunk]
    arriving, offsets, first = list(chunks), [], 0
    while arriving or len(held):
        if arriving and (not len(held) or data.draw(st.booleans())):
            records = [ScriptedRecord(time_ms, b"x") for time_ms in arriving.pop(0)]
            held.add(chunk_of(TP, records, first=first))
            first += len(records)
            continue
        assert times(held) == list(accumulate(everything[held.cursor.ordinal : first], max))
        taken = held.take(data.draw(st.integers(1, len(held))))
        offsets.extend(pa.Table.from_batches(taken.rows).column("offset").to_pylist())
        assert taken.span.end.offset == offsets[-1]
        assert held.bytes == len(held) * record_size("weather", None, b"x")
    assert offsets == [str(index) for index in range(first)]


@settings(max_examples=40, deadline=None)
@given(
    fetches=st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=5),
    data=st.data(),
)
def test_partitions_that_share_columns_give_what_they_give_alone_and_keep_twice_as_much_in_memory_at_most(
    fetches: list[list[int]], data: st.DataObject
) -> None:
    places = [TopicPartition("weather", number) for number in range(3)]
    alone, sharing = ([Retained(place, BEGINNING) for place in places] for _ in range(2))
    for counts in fetches:
        chunks = [
            chunk_of(place, [ScriptedRecord(number % 7, bytes(number)) for number in range(count)], first=len(held))
            for place, count, held in zip(places, counts, alone, strict=True)
        ]
        rows, begin = pa.Table.from_batches([chunk.rows for chunk in chunks]).combine_chunks().to_batches()[:1], 0
        for each, shares, chunk in zip(alone, sharing, chunks, strict=True):
            if count := chunk.rows.num_rows:
                each.add(chunk)
                shares.add(Chunk(chunk.partition, rows[0].slice(begin, count), chunk.sizes))
            begin += count
    while any(map(len, sharing)):
        for each, shares in zip(alone, sharing, strict=True):
            if count := data.draw(st.integers(0, len(each))):
                one, other = each.take(count), shares.take(count)
                assert one.span == other.span
                assert one.bytes == other.bytes
                assert pa.Table.from_batches(one.rows) == pa.Table.from_batches(other.rows)
        copy_out(sharing)
        in_memory = {piece.address: piece.whole for each in sharing for piece in each.pieces}
        assert sum(in_memory.values()) <= 2 * sum(map(len, sharing))
