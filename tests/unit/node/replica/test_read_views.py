"""What is kept of a reading never differs from what would be computed now; and which replicas cannot advance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from understudy_node.checkpoint.files import FileStat
from understudy_node.follow.end import End
from understudy_node.replica.read_views import Progress, Readings
from understudy_node.replica.task import FAILING_RETRIES, SILENT_MS, Stall
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


RETRY_MS = 1_000


@dataclass
class StandingReplica:
    """One that is looked at every second."""

    stall: Stall = field(default_factory=Stall)
    now_ms: float = 0.0
    version: int | None = 4
    steps: int = 0
    fails: bool = False
    lags: bool = True
    waits: bool = False

    def after(self, ms: float) -> bool:
        """Look each retry for so long; the last verdict."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms += RETRY_MS
            self.look()
        return self.stall.is_now

    def look(self) -> None:
        self.stall.look(
            lags=self.lags,
            version=self.version,
            steps=self.steps,
            fails=self.fails,
            waits=self.waits,
            now_ms=self.now_ms,
            retry_ms=RETRY_MS,
        )


def test_a_replica_that_fails_at_each_retry_is_stalled_after_so_many_though_its_steps_go_on() -> None:
    replica = StandingReplica(fails=True)
    replica.look()
    for _ in range(FAILING_RETRIES - 1):
        replica.steps += 3
        assert not replica.after(RETRY_MS)
    replica.steps += 3
    assert replica.after(RETRY_MS)


def test_a_slow_restore_that_goes_on_step_by_step_is_never_stalled() -> None:
    replica = StandingReplica(version=None, waits=True)
    for _ in range(100):
        replica.steps += 1
        assert not replica.after(SILENT_MS - RETRY_MS)


def test_one_whose_steps_never_end_is_stalled_unless_it_only_waits_for_its_turn() -> None:
    running, waiting = StandingReplica(), StandingReplica(waits=True)
    running.look()
    assert not running.after(SILENT_MS - RETRY_MS)
    assert running.after(RETRY_MS)
    assert not waiting.after(10 * SILENT_MS)
    running.waits = True  # as it does since it is not RUNNING any more
    assert running.after(10 * SILENT_MS)
    running.steps += 1
    assert not running.after(RETRY_MS)
