"""The planner against Kafka's `PartitionGroup`, over random histories: nothing differs but what is documented.

Kafka is a model here. tests/integration/pipeline/aligned/test_kafka_partition_group.py holds the model to Kafka itself.

KIP-695, statement 34, where an input was passed over: the least *head timestamp* is next, and nobody starves. There the
reference keeps logs and positions and compares the timestamps of heads, record by record, as `PartitionGroup` does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.kafka.order_sequences import (
    A5_B50,
    FLIGHTS,
    STARVATION,
    Answer,
    Count,
    Fetch,
    History,
    Run,
    Step,
    explanation,
    history,
    modelled,
    play,
)
from tests.support.kafka.partition_group import ALL, NONE, Deviation
from tests.support.measurements import measured
from tests.support.spark.record_at_a_time_merge import TOPICS, pop_all, tp
from tests.support.spark.scripted_input import ScriptedRecord, chunk_of

from understudy_aligned.batch_plan import limit_counts
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.partition_buffer import Retained

SOME = range(280, 480)
MANY = range(1_000, 2_000)


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Without the warnings about topics of different numbers of partitions, and about partitions that are gone."""
    caplog.set_level(logging.ERROR, logger="understudy_aligned")


@cache
def compared(numbers: range) -> Counter[str]:
    """How many histories there are, how many are Kafka's outright, and how many each deviation explains."""
    found: Counter[str] = Counter()
    for number in numbers:
        played = play(history(number))
        turns = modelled(played.commands, ALL)
        assert played.difference(turns) is None, f"history {number}: {played.difference(turns)}"
        found["histories"] += 1
        found["Kafka's outright"] += played.difference(modelled(played.commands, NONE)) is None
        found.update(each.name for each in explanation(played.commands))
    return found


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "numbers",
    [SOME, pytest.param(MANY, marks=[pytest.mark.full, pytest.mark.nightly])],
    ids=lambda numbers: f"{numbers.start}-{numbers.stop}",
)
def test_statement_34_every_difference_to_kafkas_order_is_a_documented_one(numbers: range) -> None:
    found = compared(numbers)
    measured(f"order against the model of PartitionGroup: {dict(found)}")
    assert found["histories"] == len(numbers)
    assert found["Kafka's outright"] > len(numbers) // 4
    assert set(found) == {"histories", "Kafka's outright", *(each.name for each in Deviation)}, "each is seen"


def test_statement_34_a_late_record_comes_before_what_its_input_was_passed_over_for() -> None:
    """100 of the one input is taken without the other, which was caught up; then the one has 5 and the other 50."""
    played = play(A5_B50)
    assert [run.taken[0] for run in played.runs] == [[("flights-0", 0)], [("flights-0", 1), ("weather-0", 0)]]
    assert played.difference(modelled(played.commands, NONE)) is None


def test_statement_34_an_input_with_one_record_from_the_future_does_not_starve() -> None:
    """The one record lifts its partition's time for good. What comes after it is judged by its own timestamp."""
    played = play(STARVATION)
    delivered = Counter(partition for run in played.runs for partition, _ in run.taken[0])
    assert delivered == {"flights-0": 1 + 8, "weather-0": 1 + 7}, "the last of weather waits for a ninth flight"
    assert played.difference(modelled(played.commands, NONE)) is None


def test_statement_35_a_partition_that_is_back_before_the_next_plan_starts_its_wait_anew() -> None:
    other = TopicPartition(FLIGHTS.topic, 1)
    gone_and_back: list[Step] = [Count((FLIGHTS.topic,), 1), Count((FLIGHTS.topic,), 2), Answer(other, 0)]
    before: list[Step] = [Answer(FLIGHTS, 0), Answer(other, 0), Fetch(FLIGHTS, 1), Run(0)]
    story = History("global", 20, -1, (FLIGHTS.topic,), 2, {FLIGHTS: [1], other: []}, [*before, Run(20)])
    assert play(story).runs[-1].taken == {0: [("flights-0", 0)]}
    story = story._replace(steps=[*before, *gone_and_back, Run(20), Answer(other, 0), Run(40)])
    assert [run.taken[0] for run in play(story).runs] == [[], [], [("flights-0", 0)]]


A, B, C = (tp(topic) for topic in TOPICS)


class Inputs:
    """What is retained of three inputs, and the reference beside it. Every input may be passed over."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[int]] = {A: [], B: [], C: []}
        self.retained = {each: Retained(each, Cursor()) for each in self.logs}
        self.places = dict.fromkeys(self.logs, 0)

    def arrive(self, each: TopicPartition, *timestamps_ms: int) -> None:
        first = len(self.logs[each])
        self.retained[each].add(chunk_of(each, [ScriptedRecord(at) for at in timestamps_ms], first=first))
        self.logs[each] += timestamps_ms

    def batch(self, limit: int) -> list[tuple[TopicPartition, int]]:
        """The timestamps of the next records, at most `limit`, in the order in which the source gives them."""
        queues = [held.queue(TOPICS.index(each.topic)) for each, held in self.retained.items()]
        everything = {queue.partition: len(queue.times_ms) for queue in queues}
        counts = limit_counts(queues, everything, limit)
        heads = [queue._replace(times_ms=queue.times_ms[: counts[queue.partition]]) for queue in queues]
        order = pop_all(heads, may_pass=set(everything)).taken
        taken = [(each, self.logs[each][self.places[each] + index]) for each, index in order]
        for each, count in counts.items():
            if count:
                self.retained[each].take(count)
                self.places[each] += count
        return taken

    def by_kafka(self, limit: int) -> list[tuple[TopicPartition, int]]:
        """The same by the reference, which moves nothing."""
        places, taken = dict(self.places), list[tuple[TopicPartition, int]]()
        while len(taken) < limit:
            heads = [
                (log[places[each]], TOPICS.index(each.topic), each)
                for each, log in self.logs.items()
                if places[each] < len(log)
            ]
            if not heads:
                break
            timestamp_ms, _, each = min(heads)
            taken.append((each, timestamp_ms))
            places[each] += 1
        return taken


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([A, B, C]), st.lists(st.integers(0, 20), min_size=1, max_size=4)),
        st.tuples(st.none(), st.integers(1, 6)),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_statement_34_the_least_head_timestamp_is_next_also_where_inputs_were_passed_over(
    steps: Sequence[tuple[TopicPartition | None, object]],
) -> None:
    at = Inputs()
    for each, what in [*steps, (None, 10**6)]:
        if each is not None:
            assert isinstance(what, list)
            at.arrive(each, *what)
        else:
            assert isinstance(what, int)
            expected = at.by_kafka(what)
            assert at.batch(what) == expected
