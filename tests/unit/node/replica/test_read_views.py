"""What is kept of a reading never differs from what would be computed now."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from understudy_node.checkpoint.files import FileStat
from understudy_node.follow.end import End
from understudy_node.replica.read_views import Progress, Readings
from understudy_node.replica.task_view import Origin, TaskView, task_view
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage, ReplicaState, Role, TaskId

FILE = FileStat(10**9, 30, 1)
TASK = TaskId(ApplicationId("a"), 0, 3)
EXPIRY_MS = 1_000.0


def view_of(version: int) -> TaskView:
    return task_view(TASK, Lineage("l"), version=version, stores={}, record=None, marks=frozenset())


class Replica:
    """Two makers of readings of one replica: `kept` is used again and again, `fresh` once."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic_ms=1_000.0)
        self.end = End(5, FILE, FILE, confirmed_ms=1_000.0, unseen_ms=900.0)
        self.origin = Origin(HostInfo("h", 1), "n1", Role.ACTIVE)
        self.view = view_of(5)
        history = SimpleNamespace(known_commit_time_ns=lambda version: version * 10**9)
        around = cast(Any, SimpleNamespace(history=history, ceiling=lambda: None))
        place = cast(Any, None)  # only the target needs it
        self.progress = Progress(place, around, end=lambda: self.end, clock=self.clock, end_expiry_ms=EXPIRY_MS)
        self.kept = Readings(self.origin, self.progress)

    def fresh(self) -> Readings:
        return Readings(self.origin, self.progress)


STEPS = st.one_of(
    st.tuples(st.just("time"), st.floats(0, 3)),
    st.tuples(st.just("time"), st.floats(0, 2_000)),
    st.tuples(st.just("confirmed"), st.none()),
    st.tuples(st.just("commit"), st.none()),
    st.tuples(st.just("doubt"), st.none()),
    st.tuples(st.just("version"), st.integers(3, 8)),
    st.tuples(st.just("state"), st.sampled_from(list(ReplicaState))),
    st.tuples(st.just("role"), st.sampled_from(list(Role))),
    st.tuples(st.just("read"), st.just(0)),
)


@given(steps=st.lists(STEPS, max_size=40), known_ends=st.lists(st.integers(0, 9), min_size=1))
def test_a_reading_says_what_one_says_that_was_computed_now(
    steps: list[tuple[str, Any]], known_ends: list[int]
) -> None:
    at = Replica()
    for number, (what, how) in enumerate(steps):
        match what:
            case "time":
                at.clock.advance(how)
            case "confirmed":
                at.end = replace(at.end, confirmed_ms=at.clock.monotonic_ms())
            case "commit":
                at.end = replace(at.end, version=at.end.version + 1, unseen_ms=at.end.confirmed_ms)
            case "doubt":
                at.end = replace(at.end, confirmed_ms=None)
            case "version":
                at.view = view_of(how)
            case "state":
                at.origin.enter(how)
            case "role":
                at.origin.set_role(how)
        known_end = known_ends[number % len(known_ends)]
        assert at.kept.of(at.view, known_end) == at.fresh().of(at.view, known_end)


def test_within_a_millisecond_the_same_bytes_are_used_again_and_after_it_they_are_not() -> None:
    at = Replica()
    at.clock.advance(0.25)
    first = at.kept.of(at.view)
    at.clock.advance(0.5)
    assert at.kept.of(at.view).tail is first.tail
    at.clock.advance(0.5)
    assert b'"time_lag_ms":2}' in at.kept.of(at.view).tail
