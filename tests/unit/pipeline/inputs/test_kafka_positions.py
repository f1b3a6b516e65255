"""Where a Kafka reader stands: records are handed out once and in order, and an end is an end however it is reached."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from understudy_aligned.inputs.kafka_reader import (
    FetchPosition,
    describe_loss,
    end_cursor,
    next_offset,
    records_in_all,
    unknown_topic,
)
from understudy_aligned.inputs.records import ROW_SCHEMA, Chunk, Cursor, TopicPartition

WHERE = TopicPartition("weather", 0)


def chunk(offsets: list[int]) -> Chunk:
    """Records with gaps between them; the size of each is its offset."""
    columns = [pa.array([str(offset) for offset in offsets]), pa.array(offsets, pa.int64())]
    columns += [pa.nulls(len(offsets), field.type) for field in list(ROW_SCHEMA)[2:]]
    return Chunk(WHERE, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), np.asarray(offsets))


def test_statement_44_a_lag_is_never_below_zero() -> None:
    assert FetchPosition(100).lag(end=90) == 0


def test_what_lies_between_the_last_record_and_an_end_that_was_reached_is_no_lag() -> None:
    place = FetchPosition(0)
    place.advance(chunk([0, 1, 2]))
    assert place.lag(5) == 2
    place.mark_end(5)  # two commit markers
    assert place.lag(5) == 0
    assert place.lag(9) == 4


@given(counts=st.lists(st.integers(1, 10_000), max_size=20))
def test_a_fetch_brings_about_the_sum_of_what_is_wanted_and_one_record_where_there_is_room_for_none(
    counts: list[int],
) -> None:
    assert sum(counts) - len(counts) < records_in_all(counts) <= max(1, sum(counts))
    assert records_in_all([1] * len(counts)) == 1


@given(end=st.integers(0, 2**40))
def test_a_reader_of_what_comes_next_begins_at_the_end(end: int) -> None:
    cursor = end_cursor(end)
    assert next_offset(cursor) == cursor.ordinal == end


def test_the_beginning_is_the_first_record_that_there_ever_was() -> None:
    assert next_offset(Cursor()) == 0


@given(low=st.integers(0, 50), length=st.integers(0, 50), position=st.integers(0, 150))
def test_a_position_is_lost_exactly_outside_of_the_log(low: int, length: int, position: int) -> None:
    lost = describe_loss(position, low=low, end=low + length)
    assert (lost is None) == (low <= position <= low + length)
    assert lost is None or str(position) in lost


def test_an_unknown_topic_is_reported_with_names_like_it_or_all_there_are() -> None:
    assert "Did you mean weather?" in str(unknown_topic("wether", ["flights", "weather"], "k:9092"))
    assert "There are: flights, weather" in str(unknown_topic("trades", ["flights", "weather"], "k:9092"))
    assert "There are: none" in str(unknown_topic("trades", [], "k:9092"))
