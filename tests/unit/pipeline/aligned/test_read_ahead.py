"""What is read ahead and retained: the bound of KIP-770, what one fetch may bring, lags with an age, and partitions
that change.

Statement 55: a bound in bytes meets an input that is waited for, and records still come. Kafka took KIP-770's input
half back for this: a task that held more than the bound paused its partitions, waited for an empty one whose lag was
above 0, and looked at the bound again only after it had processed something. It never did.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.measurements import measured
from tests.support.spark.planned_query import PlannedQuery, Start, times
from tests.support.spark.prefetch_bench import Bench
from tests.support.spark.scripted_input import ScriptedRecord, ScriptedServer, chunk_of

from understudy_aligned.inputs import redis_rows
from understudy_aligned.inputs.kafka_reader import end_cursor, records_in_all
from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import (
    NO_TIME_MS,
    RECORD_OVERHEAD_BYTES,
    Chunk,
    Cursor,
    TopicPartition,
    record_size,
)
from understudy_aligned.open_inputs import is_at, up_to
from understudy_aligned.options import MIB, AlignedOptions
from understudy_aligned.partition_buffer import Retained, copy_out
from understudy_aligned.read_ahead import (
    FETCHES_PER_BOUND,
    UNKNOWN_RECORD_BYTES,
    FetchLag,
    Lags,
    fetch_bytes,
    fetch_records,
    paused_partitions,
)
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS

A0, A1, B0, B1 = (TopicPartition(topic, p) for topic in "ab" for p in range(2))
TASKS = {0: (A0, B0), 1: (A1, B1)}


def holding(size_bytes: int, records: int) -> Retained:
    held = Retained(A0, Cursor())
    held.bytes, held.records = size_bytes, records
    return held


def paused(held: Mapping[TopicPartition, Retained], *, records: int | None = None) -> frozenset[TopicPartition]:
    return paused_partitions(held, TASKS, max_bytes=200, max_records_per_partition=records)


def test_statement_39_a_partition_goes_on_at_the_bound_or_anywhere_below_it() -> None:
    assert paused({A0: holding(1, 1_001)}, records=1_000) == {A0}
    assert paused({A0: holding(1, 1_000)}, records=1_000) == frozenset()
    assert paused({A0: holding(1, 990)}, records=1_000) == frozenset(), "stepped over the bound itself"


def test_statement_56_the_bound_is_512_mib_and_shared_evenly_between_tasks() -> None:
    assert AlignedOptions(inputs=(), topics=()).input_buffer_max_bytes == 512 * MIB
    three = {**TASKS, 2: (TopicPartition("a", 2),)}
    assert paused_partitions({A0: holding(100, 1), A1: holding(101, 1)}, three, max_bytes=300) == {A1}
    assert paused_partitions({A0: holding(100, 1)}, {}, max_bytes=300) == frozenset(), "while no task is known"


def test_statement_58_more_than_the_share_pauses_and_just_the_share_does_not() -> None:
    assert paused({A0: holding(60, 1), B0: holding(40, 1)}) == frozenset()
    assert paused({A0: holding(60, 1), B0: holding(41, 1)}) == {A0, B0}


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


def test_a_fetch_is_bounded_by_the_sum_of_all_partitions() -> None:
    topics, bound = tuple(f"t{number}" for number in range(40)), 64 << 20
    bench = Bench(*topics, options=AlignedOptions((), (), input_buffer_max_bytes=bound)).ready()
    wanted = bench.shared.ahead.records_to_fetch(topics)
    assert len(wanted) == len(topics)
    assert 0.9 * fetch_bytes(bound, held=0) < sum(wanted.values()) * UNKNOWN_RECORD_BYTES <= fetch_bytes(bound, held=0)


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


VALUE = 1_000
RECORD = record_size("a", None, bytes(VALUE))
BACKLOG = 1_000
STEP = 100
SLOW = (*range(10), *range(STEP, BACKLOG + STEP, STEP))
"""Times of the input that is waited for. Each record comes when nothing else is left to do. The first ones let a single
record of the backlog go, so that the task stays over its bound; the last is behind all."""

IN_VAIN = 2_000
"""Looks of 5 ms without a batch, one after the other: then nothing comes any more."""

COMES_S = 5.0
"""For a record that may come, to be held beside the backlog before anybody plans."""


class Outcome:
    """Times in the order of the batches, and the most bytes that were retained at any look."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.batches = 0
        self.retained = 0


def drained(query: PlannedQuery, records: int, *, let_come: Callable[[], None]) -> Outcome:
    """All records, or as many as come."""
    outcome, in_vain = Outcome(), 0
    while len(outcome.times) < records and in_vain < IN_VAIN:
        batch = query.planner.plan(query.offset, wait_ms=5)
        outcome.retained = max(outcome.retained, query.planner.snapshot().input_buffer_bytes)
        if batch is None:
            in_vain += 1
            let_come()
            continue
        query.offset = batch.end
        outcome.batches += 1
        outcome.times.extend(times(batch))
        in_vain = 0
    return outcome


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("max_task_idle_ms", "max_drift_ms"), [(0, None), (10_000, None), (0, 20)])
def test_statement_55_a_bound_below_one_inputs_backlog_never_stops_a_task_that_waits_for_another(
    start: Start, max_task_idle_ms: int, max_drift_ms: int | None
) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, *range(BACKLOG), size=VALUE)
    server.put("b", 0, *SLOW, size=VALUE)
    server.withhold("b", 0)
    bound = 40 * RECORD
    options = AlignedOptions(
        inputs=(),
        topics=(),
        input_buffer_max_bytes=bound,
        max_task_idle_ms=max_task_idle_ms,
        max_drift_ms=max_drift_ms,
    )
    query = start(server, options=options)

    left = list(SLOW)

    def let_come() -> None:
        if left and query.planner.snapshot().paused and not server.is_coming("b", 0):
            left.pop()
            server.release("b", 0, 1)
            server.wait_until_fetched("b", 0, limit_s=COMES_S)

    records = BACKLOG + len(SLOW) - 1
    outcome = drained(query, records, let_come=let_come)
    one_fetch = bound // FETCHES_PER_BOUND + 2 * RECORD
    measured(
        f"livelock, idle {max_task_idle_ms} ms, drift {max_drift_ms} ms: {len(outcome.times)} of {records} records, "
        f"{outcome.batches} batches, at most {outcome.retained:,} bytes retained of {bound:,} + {one_fetch:,} allowed"
    )
    assert len(outcome.times) >= records
    if max_drift_ms is None:
        assert outcome.times == sorted(outcome.times), "and in order: no wait ran out"
    assert outcome.retained <= bound + one_fetch
    assert outcome.batches >= len(SLOW) - 1


@pytest.mark.timeout(120)
def test_a_bound_below_the_size_of_a_record_lets_records_pass_one_by_one(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, *range(0, 60, 2), size=VALUE)
    server.put("b", 0, *range(1, 60, 2), size=VALUE)
    query = start(server, options=AlignedOptions(inputs=(), topics=(), input_buffer_max_bytes=1))
    outcome = drained(query, 60, let_come=lambda: None)
    assert outcome.times == list(range(60))
    assert outcome.retained <= 2 * RECORD


TP = TopicPartition("weather", 0)
BEGINNING = Cursor()


def retained(times_ms: list[int | None], **given: Any) -> Retained:
    held = Retained(TP, BEGINNING, **given)
    held.add(chunk_of(TP, [ScriptedRecord(time_ms) for time_ms in times_ms], first=0))
    return held


def times_of(held: Retained) -> list[int]:
    return held.queue(0).times_ms.tolist()  # type: ignore[no-any-return]


def test_a_record_from_the_future_holds_up_its_partition_by_a_jump_at_most() -> None:
    held = retained([0, 10**6, 300], max_jump_ms=1_000)
    assert times_of(held) == [0, 1_000, 1_000]
    held.take(2)
    assert times_of(held) == [300]


def test_poison_keeps_its_place_and_takes_the_partitions_time() -> None:
    held = retained([None, 5, None])
    assert times_of(held) == [NO_TIME_MS, 5, 5]
    assert held.first_refused(1) == 0
    assert held.take(1).span.end == Cursor("0", 1, NO_TIME_MS)
    assert held.first_refused(1) is None
    assert held.first_refused(2) == 1
    assert held.offset(1) == "2"
    assert held.take(2).timestamps_ms.tolist() == [5, NO_TIME_MS]


def test_poison_that_is_given_its_partitions_time_has_it_after_a_batch_too_and_is_refused_where_there_is_none() -> None:
    held = retained([None, 5, 3, None], undecodable="partition-time")
    assert held.first_refused(4) == 0
    held.take(2)
    assert times_of(held) == [3, 5], "not NO_TIME_MS, which would let it pass all others"
    assert held.first_refused(2) is None
    held.take(1)
    assert times_of(held) == [5]
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
        assert times_of(held) == list(accumulate(everything[held.cursor.ordinal : first], max))
        begin, taken = held.cursor, held.take(data.draw(st.integers(1, len(held))))
        offsets.extend(pa.Table.from_batches(taken.rows).column("offset").to_pylist())
        assert taken.span == (TP, begin, held.cursor)
        assert held.cursor == Cursor(offsets[-1], len(offsets), max(everything[: len(offsets)]))
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


A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("end", "kept", "is_at_end"),
    [
        (Cursor("7-2", 3), 2, True),
        (Cursor("7-5", 4), 2, True),
        (Cursor("10-0", 4), 3, True),
        (Cursor("11-0", 4), 3, False),
        (Cursor("7-0", 1), 0, True),
        (Cursor(), 0, True),
    ],
    ids=["a record", "a deleted one", "the last one", "later ones", "before them", "an empty log"],
)
def test_an_end_is_found_by_its_offset_whatever_ordinals_are_after_a_loss(
    end: Cursor, kept: int, *, is_at_end: bool
) -> None:
    rows = chunk_of(A0, [ScriptedRecord(1)] * 3, first=1_000).rows
    ids = pa.array(["7-1", "7-2", "10-0"], rows.schema.field("offset").type)
    rows = rows.set_column(rows.schema.get_field_index("offset"), rows.schema.field("offset"), ids)
    found, has_reached = up_to(redis_rows.chunk_of(A0, rows), end)
    assert (0 if found is None else found.rows.num_rows, has_reached) == (kept, is_at_end)


def test_an_empty_log_ends_before_its_first_record_in_kafka_too() -> None:
    chunk = chunk_of(A0, [ScriptedRecord(1)], first=0)
    assert up_to(chunk, end_cursor(0)) == (None, True)
    assert is_at(end_cursor(0), end_cursor(0))


def lags_of(records: int) -> Lags:
    lags = Lags(max_age_ms=5_000)
    lags.update({A: records}, asked_ms=1_000)
    return lags


def test_statement_38_a_lag_is_never_below_0_and_unknown_is_no_number() -> None:
    assert lags_of(-1).current(A, 1_000) == FetchLag(0, 0)
    assert lags_of(-7).current(A, 1_000) == FetchLag(0, 0)
    assert lags_of(0).current(B, 1_000) is None


def test_statement_44_an_answer_has_an_age_and_too_old_a_one_is_unknown() -> None:
    lags = lags_of(3)
    assert lags.current(A, 1_000) == FetchLag(3, 0)
    assert lags.current(A, 6_000) == FetchLag(3, 5_000)
    assert lags.current(A, 6_001) is None


def test_what_was_fetched_since_is_taken_off_an_answer() -> None:
    lags = lags_of(5)
    lags.subtract_fetched(A, 3)
    assert lags.current(A, 2_000) == FetchLag(2, 1_000)
    lags.subtract_fetched(A, 2)
    assert lags.current(A, 2_000) == FetchLag(0, 1_000), "all that it knew of"


def test_an_answer_that_knew_of_fewer_than_were_fetched_since_is_out_of_date() -> None:
    lags = lags_of(0)
    lags.subtract_fetched(A, 1)
    lags.subtract_fetched(A, 1)
    assert lags.current(A, 1_000) is None


def test_a_partition_that_only_one_topic_has_yet_waits_for_the_other(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("a", "b").ready()
    bench.server.grow("a", 2)
    for _ in range(2):
        bench.clock.advance(COUNT_INTERVAL_MS)
        bench.turns(2)
    assert bench.shared.ahead.tasks == {0: (A, B)}
    assert [record.__dict__["action"] for record in caplog.records] == ["uneven-partitions"], "said once"
    bench.server.grow("b", 2)
    bench.clock.advance(COUNT_INTERVAL_MS)
    bench.turns(1)
    assert list(bench.shared.ahead.tasks) == [0, 1]


def test_a_topic_that_lost_partitions_does_not_end_a_query_that_may_lose_data() -> None:
    bench = Bench("a", "b", options=AlignedOptions(inputs=(), topics=(), fail_on_data_loss=False))
    bench.server.grow("a", 2)
    last = {TopicPartition(topic, 1): Cursor("3", 4, 9) for topic in ("a", "b")}
    bench.shared.ahead.seek_to({A: Cursor("3", 4, 9), B: Cursor("3", 4, 9), **last})
    bench.turns(1)
    assert bench.shared.ahead.tasks == {0: (A, B)}
    assert bench.shared.ahead.unread == (TopicPartition("a", 1),)


@pytest.mark.parametrize("fails", [True, False])
def test_a_partition_that_vanished_is_lost_data(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("a", options=AlignedOptions(inputs=(), topics=(), fail_on_data_loss=fails))
    bench.shared.ahead.seek_to({TopicPartition("a", 1): Cursor("3", 4, 9)})
    if fails:
        with pytest.raises(DataLostError, match="a-1"):
            bench.turns(1)
    else:
        bench.turns(1)
        assert [record.__dict__["action"] for record in caplog.records] == ["data-lost"]
        assert list(bench.shared.ahead.retained) == [A]
