"""A node's health by the results of requests to it: what holds for every history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.router.health_tables import HEARTBEAT_MS, HOUR_MS, OK, QUARANTINED, SUSPECT, health, table

from understudy_router.cluster.health import (
    GOOD_TO_LEAVE,
    MAX_HOLD_MS,
    MAX_PROBE_GAP_MS,
    MAX_SUSPICIONS,
    Change,
    Health,
    HealthTable,
)


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


def take(nodes: HealthTable, results: Sequence[Result]) -> tuple[list[tuple[float, str, Change]], float]:
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
def test_the_same_history_always_ends_the_same(results: list[Result]) -> None:
    first, second = table(), table()
    assert take(first, results) == take(second, results)
    assert [first.of(node_id) for node_id in "abc"] == [second.of(node_id) for node_id in "abc"]


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

    def _take(self, node_id: str, change: Change | None) -> None:
        self.known.add(node_id)
        if change is not None:
            assert change.health is not self.seen.get(node_id, OK), "a change changes something"
            self.seen[node_id] = change.health
            self.changes += 1


Story.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEveryStoryOfNodes = Story.TestCase
