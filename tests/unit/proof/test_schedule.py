"""Schedules: the same seed gives the same, two faults never meet where the menu does not say so, every fault comes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.system.proof.schedule import (
    IN_A_FOLDER,
    MENU,
    MIN_GAP_S,
    Schedule,
    Step,
    random_schedule,
)

SEEDS = st.integers(0, 2**32)


@settings(max_examples=30)
@given(seed=SEEDS, minutes=st.floats(1, 40))
def test_a_random_schedule_ends_in_time_and_no_fault_comes_again_before_all_have_come(
    seed: int, minutes: float
) -> None:
    schedule = random_schedule(minutes, seed)
    assert schedule.ends_s <= minutes * 60 + 0.1
    outer: list[str] = []
    until_s = 0.0
    for step in schedule.steps:
        if step.at_s >= until_s:
            outer.append(step.fault)
            until_s = step.until_s
    for start in range(0, len(outer), len(IN_A_FOLDER)):
        round_of_all = outer[start : start + len(IN_A_FOLDER)]
        assert len(set(round_of_all)) == len(round_of_all)


@settings(max_examples=50)
@given(seed=SEEDS)
def test_two_faults_that_take_a_replica_never_overlap(seed: int) -> None:
    steps = [step for step in random_schedule(30, seed).steps if MENU[step.fault].takes_replica]
    for earlier, later in pairwise(steps):
        assert later.at_s >= earlier.until_s + MIN_GAP_S


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((Step(5, "meteor", "node-1", 5),), "no fault"),
        ((Step(5, "kill-active", "node-1", 0),), "lasts no time"),
        ((Step(50, "kill-active", "node-1", 5), Step(5, "slow-node", "node-1", 5)), "order"),
        ((Step(5, "kill-active", "node-1", 5), Step(11, "slow-node", "node-2", 5)), "meets"),
        ((Step(5, "redis-down", "redis", 10), Step(8, "disk-full", "node-2", 2)), "meets"),
        ((Step(5, "redis-down", "redis", 10), Step(8, "kill-active", "node-2", 9)), "meets"),
        ((Step(5, "redis-down", "redis", 100),), "beyond the end"),
    ],
)
def test_a_schedule_that_breaks_the_menus_rules_is_refused(steps: tuple[Step, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Schedule.from_json(Schedule("by hand", 1, steps, 60).to_json())
