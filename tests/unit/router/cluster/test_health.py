"""A node's health by the results of requests to it: the rules, and what holds for every history."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.router.health_tables import (
    HEARTBEAT_MS,
    HOUR_MS,
    OK,
    QUARANTINED,
    SUSPECT,
    health,
    table,
)

from understudy_router.cluster.health import (
    GOOD_TO_LEAVE,
    HOLD_MS,
    MAX_BAD_IN_A_ROW,
    MAX_HOLD_MS,
    MAX_PROBE_GAP_MS,
    MAX_SUSPICIONS,
    OUTLIER_FACTOR,
    OUTLIER_MS,
    RESULT_GAP_MS,
    Health,
    HealthChange,
    HealthTable,
)


def quarantined(*, now_ms: float = 0) -> HealthTable:
    """A table in which node a is in quarantine; its last failure was at `now_ms`."""
    nodes = table()
    for number in reversed(range(MAX_BAD_IN_A_ROW)):
        nodes.failed("a", now_ms - number * RESULT_GAP_MS, "reset")
    assert health(nodes) is QUARANTINED
    return nodes


def answered_often(nodes: HealthTable, took_ms: float, *node_ids: str, now_ms: float = 0) -> list[HealthChange | None]:
    return [nodes.answered(node_id, now_ms, took_ms) for _ in range(20) for node_id in node_ids]


def test_a_failure_makes_a_node_suspect_and_one_good_answer_makes_it_ok() -> None:
    nodes = table()
    assert nodes.failed("a", 0, "reset: it hung up") == HealthChange(SUSPECT, "reset: it hung up")
    assert nodes.of("a") == HealthChange(SUSPECT, "reset: it hung up")
    assert nodes.answered("a", 50, 1) == HealthChange(OK, "")
    assert nodes.of("a") == HealthChange(OK, "")


def test_an_answer_to_what_was_sent_before_the_doubt_began_says_nothing_against_it() -> None:
    nodes = table()
    nodes.failed("a", 100, "reset")
    assert nodes.answered("a", 105, 10) is None
    assert nodes.answered("a", 115, 10) == HealthChange(OK, "")


def test_five_bad_results_in_a_row_are_a_quarantine_that_says_so() -> None:
    nodes = quarantined()
    assert nodes.of("a").why == f"{MAX_BAD_IN_A_ROW} bad results in a row, the last: reset"


def test_a_node_that_answers_now_and_then_is_not_trusted_for_ever() -> None:
    nodes = table()
    for number in range(MAX_SUSPICIONS):
        assert health(nodes) is OK
        nodes.failed("a", number * HEARTBEAT_MS, "reset")
        nodes.answered("a", number * HEARTBEAT_MS + 500, 1)
    assert health(nodes) is QUARANTINED
    assert "within a minute" in nodes.of("a").why


def leave(nodes: HealthTable, now_ms: float) -> float:
    """The first moment at which a node that answers well every 100 ms is ok."""
    while health(nodes) is not OK:
        now_ms += RESULT_GAP_MS
        nodes.answered("a", now_ms, 1)
    return now_ms


def relapse(nodes: HealthTable, now_ms: float) -> float:
    while health(nodes) is not QUARANTINED:
        now_ms += RESULT_GAP_MS
        nodes.failed("a", now_ms, "reset")
    return now_ms


def test_each_relapse_doubles_the_hold_up_to_a_limit_and_peace_takes_it_back() -> None:
    nodes, now_ms, lasted = table(), 0.0, []
    for _ in range(8):
        began_ms = relapse(nodes, now_ms)
        now_ms = leave(nodes, began_ms)
        lasted.append(now_ms - began_ms)
    holds = [HOLD_MS * 2**number for number in range(5)] + [MAX_HOLD_MS] * 3
    for real, hold in zip(lasted, holds, strict=True):
        assert hold <= real <= hold + (GOOD_TO_LEAVE + 1) * RESULT_GAP_MS
    began_ms = relapse(nodes, now_ms + HOUR_MS)
    assert leave(nodes, began_ms) - began_ms < 2 * HOLD_MS


def test_a_node_that_is_much_slower_than_the_others_is_suspect() -> None:
    nodes = table()
    answered_often(nodes, 10, "b", "c")
    changes = [change for change in answered_often(nodes, 60, "a") if change]
    assert [change.health for change in changes] == [SUSPECT]
    assert "60 ms in the median" in changes[0].why
    assert nodes.answered("a", 1000, 60) is None, "as slow as that is not good"
    assert nodes.answered("a", 2000, 20) == HealthChange(OK, "")


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 150), min_size=1), st.sets(st.sampled_from("abcdef")))
def test_an_outlier_is_measured_by_the_median_of_the_others_that_are_ok(
    times_ms: dict[str, int], ill: set[str]
) -> None:
    nodes = table()
    for node_id, took_ms in times_ms.items():
        for _ in range(5):
            nodes.answered(node_id, 0, 1)  # none is an outlier yet
        for _ in range(15):
            nodes._records[node_id].recent.append(took_ms)
    for node_id in ill & times_ms.keys():
        nodes.failed(node_id, 0, "reset")
    for node_id in times_ms:
        others = [took_ms for other, took_ms in times_ms.items() if other != node_id and other not in ill]
        limit_ms = max(OUTLIER_MS, OUTLIER_FACTOR * median_low(others)) if others else None
        assert nodes._outlier_ms(node_id, 300) == limit_ms


def test_a_suspect_is_probed_at_once_and_then_once_per_heartbeat() -> None:
    nodes = table()
    nodes.failed("a", 100, "reset")
    assert nodes.due(100) == ["a"]
    nodes.probe_sent("a", 100, heartbeat_ms=HEARTBEAT_MS, jitter=1.1)
    assert nodes.due(1199) == []
    assert nodes.due(1200) == ["a"]


def test_a_node_in_quarantine_is_probed_after_its_hold_and_then_ever_more_rarely_until_it_answers() -> None:
    nodes, now_ms, gaps = quarantined(), 0.0, []
    for _ in range(7):
        before_ms = now_ms
        while not nodes.due(now_ms):
            now_ms += 50
        gaps.append(now_ms - before_ms)
        nodes.probe_sent("a", now_ms, heartbeat_ms=HEARTBEAT_MS, jitter=1)
        nodes.failed("a", now_ms + 10, "timeout")
    assert gaps == [HOLD_MS, 1000, 2000, 4000, 8000, MAX_PROBE_GAP_MS, MAX_PROBE_GAP_MS]
    nodes.answered("a", now_ms + 1000, 1)
    nodes.probe_sent("a", now_ms + 1000, heartbeat_ms=HEARTBEAT_MS, jitter=1)
    assert nodes.due(now_ms + 2000) == ["a"]


class Result(NamedTuple):
    """The result of one request: how long after the result before it, of which node, and its kind."""

    after_ms: float
    node_id: str
    kind: str
    took_ms: float


RESULTS = st.lists(
    st.builds(
        Result,
        st.sampled_from([1, 40, 150, 1000, 20_000]),
        st.sampled_from("abc"),
        st.sampled_from(["answered", "answered", "failed", "silent"]),
        st.sampled_from([1, 60, 190, 500]),
    ),
    max_size=80,
)


def take(nodes: HealthTable, results: Sequence[Result]) -> tuple[list[tuple[float, str, HealthChange]], float]:
    """Feed a history to the table. Return its changes, and when it ends."""
    now_ms, changes = 0.0, []
    for after_ms, node_id, kind, took_ms in results:
        now_ms += after_ms
        if kind == "answered":
            change = nodes.answered(node_id, now_ms, took_ms)
        elif kind == "failed":
            change = nodes.failed(node_id, now_ms, "reset")
        else:
            change = nodes.silent(node_id, now_ms, 210)
        if change is not None:
            changes.append((now_ms, node_id, change))
    return changes, now_ms


@given(RESULTS)
def test_every_node_that_answers_its_probes_is_ok_again_within_a_bounded_time(results: list[Result]) -> None:
    nodes = table()
    _, now_ms = take(nodes, results)
    end_ms = now_ms + MAX_HOLD_MS + MAX_PROBE_GAP_MS + (GOOD_TO_LEAVE + 1) * HEARTBEAT_MS
    while now_ms < end_ms:
        now_ms += HEARTBEAT_MS / 4
        for node_id in nodes.due(now_ms):
            nodes.probe_sent(node_id, now_ms, heartbeat_ms=HEARTBEAT_MS, jitter=1)
            nodes.answered(node_id, now_ms + 1, 1)
    assert [health(nodes, node_id) for node_id in "abc"] == [OK] * 3


@given(RESULTS)
def test_a_node_without_a_bad_result_stays_ok(results: list[Result]) -> None:
    nodes = table()
    fine = [each._replace(kind="answered", took_ms=1) if each.node_id == "a" else each for each in results]
    changes, _ = take(nodes, fine)
    assert all(node_id != "a" for _, node_id, _ in changes)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([10, 90, 300]), st.booleans()), min_size=1, max_size=8))
def test_however_a_node_flaps_its_health_does_not(pattern: list[tuple[float, bool]]) -> None:
    """The worst node: it fails whenever it is trusted, and otherwise as the pattern says, for ten minutes."""
    nodes, now_ms = table(), 0.0
    while now_ms < 600_000:
        for after_ms, good in pattern:
            now_ms += after_ms
            if health(nodes) is OK or not good:
                nodes.failed("a", now_ms, "reset")
            else:
                nodes.answered("a", now_ms, 1)
    # At most five suspicions until the first quarantine; later ones come after holds of 1, 2, 4, 8, 16, 30, 30 ... s,
    # and between two of them there are never more than those that a minute may have.
    quarantines = 5 + (600 - 31) / (MAX_HOLD_MS / 1000)
    assert nodes.entered[QUARANTINED] <= quarantines + 1
    assert nodes.entered[SUSPECT] <= (quarantines + 1) * MAX_SUSPICIONS


class Story(RuleBasedStateMachine):
    """Anything may happen to five nodes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = table()
        self.now_ms = 0.0
        self.known: set[str] = set()
        self.seen: dict[str, Health] = {}
        self.changes = 0

    @rule(ms=st.sampled_from([0, 1, 99, 100, 1000, 5000, 61_000]))
    def time_passes(self, ms: float) -> None:
        self.now_ms += ms

    @rule(node_id=st.sampled_from("abcde"), took_ms=st.sampled_from([1, 60, 201]))
    def answers(self, node_id: str, took_ms: float) -> None:
        self._take(node_id, self.nodes.answered(node_id, self.now_ms, took_ms))

    @rule(node_id=st.sampled_from("abcde"))
    def fails(self, node_id: str) -> None:
        self._take(node_id, self.nodes.failed(node_id, self.now_ms, "reset"))
        assert health(self.nodes, node_id) is not OK

    @rule(node_id=st.sampled_from("abcde"))
    def is_silent(self, node_id: str) -> None:
        self._take(node_id, self.nodes.silent(node_id, self.now_ms, 210))
        assert health(self.nodes, node_id) is not OK

    @rule(node_id=st.sampled_from("abcde"))
    def goes(self, node_id: str) -> None:
        self.nodes.forget(node_id)
        self.known.discard(node_id)
        self.seen.pop(node_id, None)

    @rule()
    def is_probed(self) -> None:
        for node_id in self.nodes.due(self.now_ms):
            self.nodes.probe_sent(node_id, self.now_ms, heartbeat_ms=HEARTBEAT_MS, jitter=0.9)
        assert self.nodes.due(self.now_ms) == []

    @invariant()
    def the_health_is_the_sum_of_the_changes(self) -> None:
        assert {node_id: health(self.nodes, node_id) for node_id in self.seen} == self.seen
        assert self.nodes.entered.total() == self.changes

    @invariant()
    def only_nodes_that_are_not_ok_have_a_reason_and_are_probed(self) -> None:
        ill = {node_id for node_id in "abcde" if health(self.nodes, node_id) is not OK}
        assert {node_id for node_id in "abcde" if self.nodes.of(node_id).why} == ill
        assert set(self.nodes.due(self.now_ms + HOUR_MS)) == ill

    @invariant()
    def nothing_is_kept_of_nodes_that_are_gone(self) -> None:
        assert len(self.nodes) == len(self.known)

    def _take(self, node_id: str, change: HealthChange | None) -> None:
        self.known.add(node_id)
        if change is not None:
            assert change.health is not self.seen.get(node_id, OK), "a change changes something"
            self.seen[node_id] = change.health
            self.changes += 1


Story.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEveryStoryOfNodes = Story.TestCase
