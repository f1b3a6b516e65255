"""The planner against Kafka's `PartitionGroup`, over random histories: nothing differs but what is documented.

Kafka is a model here. tests/integration/pipeline/aligned/test_kafka_partition_group.py holds the model to Kafka itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache

import pytest
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

from understudy_aligned.inputs.records import TopicPartition

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
