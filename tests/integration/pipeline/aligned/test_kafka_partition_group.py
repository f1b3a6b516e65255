"""Kafka itself as the oracle of the order: Kafka Streams' `PartitionGroup` gets the histories that the planner gets.

Every difference between the two is a documented deviation, by name: the model of `PartitionGroup` is Kafka without any
of them, and the planner with all of them.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from tests.support.kafka.order_sequences import A5_B50, STARVATION, History, explanation, history, modelled, play
from tests.support.kafka.partition_group import ALL, NONE, Deviation
from tests.support.kafka.streams_oracle import PartitionGroupDriver
from tests.support.measurements import measured

MANY = [
    pytest.param(range(first, first + 1_000), marks=[] if first == 1_000 else pytest.mark.nightly)
    for first in range(1_000, 11_000, 1_000)
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> PartitionGroupDriver:
    return PartitionGroupDriver(tmp_path_factory.mktemp("classes"))


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Without the warnings about topics of different numbers of partitions, and about partitions that are gone."""
    caplog.set_level(logging.ERROR, logger="understudy_aligned")


@pytest.mark.full
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("numbers", MANY, ids=lambda numbers: f"{numbers.start}-{numbers.stop}")
def test_statement_34_no_difference_to_kafkas_own_order_is_unexplained(
    kafka: PartitionGroupDriver, numbers: range
) -> None:
    played = {number: play(history(number)) for number in numbers}
    answers = iter(kafka.answers(line for each in played.values() for line in each.commands))
    found: Counter[str] = Counter()
    for number, each in played.items():
        plain, here = modelled(each.commands, NONE), modelled(each.commands, ALL)
        turns = [next(answers) for _ in plain]
        assert turns == plain, f"history {number}: the model is not Kafka"
        assert each.difference(here) is None, f"history {number}: {each.difference(here)}"
        explained = [one.name for one in explanation(each.commands)]
        if not explained:
            assert each.difference(turns) is None, f"history {number}: {each.difference(turns)}"
        found.update(["histories", *explained])
        found["Kafka's outright"] += each.difference(turns) is None
        found["records"] += each.late[0]
    assert next(answers, None) is None
    measured(f"order against Kafka's PartitionGroup: {dict(found)}, unexplained: 0")
    assert found["histories"] == len(numbers)
    assert {one.name for one in Deviation} <= found.keys(), "every deviation was seen"


@pytest.mark.parametrize(
    ("story", "delivered"),
    [
        (A5_B50, {"flights-0": 2, "weather-0": 1}),
        (STARVATION, {"flights-0": 1 + 8, "weather-0": 1 + 7}),
    ],
    ids=["A5 B50", "one record from the future"],
)
def test_statement_34_where_an_input_was_passed_over_kafka_and_the_planner_deliver_the_same(
    kafka: PartitionGroupDriver, story: History, delivered: dict[str, int]
) -> None:
    """Without any deviation."""
    played = play(story)
    turns = kafka.answers(played.commands)
    assert played.difference(turns) is None
    assert Counter(partition for turn in turns for partition, _ in turn.taken) == delivered
