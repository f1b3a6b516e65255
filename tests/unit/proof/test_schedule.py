"""Schedules: the same seed gives the same, two faults never meet where the menu does not say so, every fault comes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.system.proof.schedule import (
    CAST,
    IN_A_FOLDER,
    MENU,
    MIN_GAP_S,
    Cast,
    Schedule,
    Step,
    faults_in,
    long,
    objections,
    random_schedule,
    short,
)

SEEDS = st.integers(0, 2**32)


def test_every_fault_of_the_failure_stories_is_on_the_menu() -> None:
    wanted = """
        kill-active stop-active kill-router cut-node cut-replies cut-node-from-redis slow-node slow-link
        node-answers-500 refuse-node redis-down redis-pause redis-flush redis-refuses-writes disk-full corrupt-changelog
        delete-changelog clock-jump rolling-restart checkpoint-gone kill-spark absurd-messages hostile-connections
        forked-checkpoint redis-garbage
    """
    assert set(IN_A_FOLDER) == set(wanted.split())
    of_folders = {"corrupt-changelog", "delete-changelog", "checkpoint-gone", "forked-checkpoint"}
    of_stores = {"store-throttles", "store-hangs", "cut-node-from-store", "kill-restoring"}
    of_hdfs = {"store-hangs", "cut-node-from-store", "namenode-stops", "datanode-stops"}
    for storage in ("s3", "azure"):
        assert set(faults_in(storage)) == set(wanted.split()) - of_folders | of_stores
    assert set(faults_in("hdfs")) == set(wanted.split()) - of_folders | of_hdfs
    assert set(faults_in("folder", "hdfs")) == set(wanted.split()) | {"damaged-local-copy"}
    unsigned = {"absurd-messages", "clock-jump"}
    assert set(faults_in("folder", signed=True)) == set(wanted.split()) - unsigned | {"unsigned-lease"}
    assert set(faults_in("folder", "rocksdb-v1")) == set(wanted.split()) | {"added-variable"}
    assert set(MENU) == set(faults_in("folder", "hdfs")) | of_stores | of_hdfs | {"unsigned-lease", "added-variable"}


@given(seed=SEEDS)
def test_the_short_schedule_has_every_fault_once_in_less_than_four_minutes(seed: int) -> None:
    schedule = short(seed)
    assert [step.fault for step in schedule.steps] == list(IN_A_FOLDER)
    assert 150 < schedule.ends_s < 240


@settings(max_examples=30)
@given(seed=SEEDS)
def test_the_long_schedule_has_every_fault_and_what_the_menu_allows_beside_it_in_twelve_minutes(
    seed: int,
) -> None:
    schedule = long(seed)
    assert {step.fault for step in schedule.steps} == set(IN_A_FOLDER)
    assert len(schedule.steps) > len(IN_A_FOLDER)
    assert 540 < schedule.ends_s < 780


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
def test_every_schedule_may_be_run_and_hits_only_processes_that_are_there(seed: int) -> None:
    cast = Cast(nodes=("a", "b", "c", "d"), routers=("r",))
    for schedule in (short(seed, cast), long(seed, cast), random_schedule(12, seed, cast)):
        assert objections(schedule) == []
        for step in schedule.steps:
            assert step.target in cast.targets(MENU[step.fault].target)


@settings(max_examples=50)
@given(seed=SEEDS)
def test_two_faults_that_take_a_replica_never_overlap(seed: int) -> None:
    steps = [step for step in random_schedule(30, seed).steps if MENU[step.fault].takes_replica]
    for earlier, later in pairwise(steps):
        assert later.at_s >= earlier.until_s + MIN_GAP_S


@given(seed=SEEDS)
def test_a_schedule_is_a_function_of_its_seed_and_comes_back_from_its_json(seed: int) -> None:
    schedule = random_schedule(5, seed)
    assert random_schedule(5, seed) == schedule == Schedule.from_json(schedule.to_json())


def test_a_menu_may_be_cut_down() -> None:
    chosen = ("redis-down", "kill-active")
    assert {step.fault for step in long(3, CAST, chosen).steps} == set(chosen)
    assert {step.fault for step in random_schedule(5, 3, CAST, chosen).steps} == set(chosen)


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


def test_a_fault_that_the_menu_allows_beside_another_lies_within_it() -> None:
    steps = (Step(5, "redis-down", "redis", 20), Step(8, "kill-active", "node-2", 9))
    assert objections(Schedule("by hand", 1, steps, 60)) == []
