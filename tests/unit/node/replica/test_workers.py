"""Which replicas get a step of work, in which order, and how the workers run it. Tests wait for events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.spark.queries import wait_until

from understudy_node.replica.workers import (
    LOOKS_AT_REST,
    PREFETCH_FLOOR_MS,
    TAILING_TURNS,
    FairQueue,
    Workers,
    WorkerShare,
    WorkSchedule,
)

TASKS = "abcdefgh"


def queue_of(*, workers: int = 2, tailing: str = "", background: str = "") -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue(workers=workers)
    for task in background:
        queue.put(task, background=True)
    for task in tailing:
        queue.put(task, background=False)
    return queue


def taken(queue: FairQueue[str], takes: int) -> list[str | None]:
    return [queue.take() for _ in range(takes)]


def test_a_task_with_more_to_do_waits_for_the_others_first() -> None:
    queue = queue_of(tailing="abc")
    order = []
    for _ in range(7):
        task = queue.take()
        assert task is not None
        order.append(task)
        queue.done(task, more=True, background=False)
    assert order == list("abcabca")


def test_tailing_that_never_catches_up_does_not_stop_a_restore() -> None:
    queue = queue_of(tailing="ab", background="r")
    order = []
    for _ in range(3 * (TAILING_TURNS + 1)):
        task = queue.take()
        assert task is not None
        order.append(task)
        queue.done(task, more=True, background=task == "r")
    assert order.count("r") == 3
    assert order.index("r") == TAILING_TURNS


class Workshop(RuleBasedStateMachine):
    """Any order of asking, taking, ending and discarding, against sets that say what must hold."""

    @initialize(workers=st.integers(2, 4))
    def open(self, workers: int) -> None:
        self.workers = workers
        self.queue: FairQueue[str] = FairQueue(workers=workers)
        self.waiting: dict[str, bool] = {}
        self.patience: dict[str, int] = {}
        self.running: dict[str, bool] = {}
        self.again: set[str] = set()
        self.left: set[str] = set()

    @rule(task=st.sampled_from(TASKS), background=st.booleans())
    def put(self, task: str, background: bool) -> None:
        self.queue.put(task, background=background)
        if task in self.running:
            self.again.add(task)
            self.left.discard(task)
        else:
            self._wait(task, background)

    @precondition(lambda self: len(self.running) < self.workers)
    @rule()
    def take(self) -> None:
        task = self.queue.take()
        may_run_background = sum(self.running.values()) < self.workers - 1
        candidates = {name for name, background in self.waiting.items() if may_run_background or not background}
        if task is None:
            assert not candidates
            return
        assert task in candidates
        assert task not in self.running
        self.running[task] = self.waiting.pop(task)
        del self.patience[task]
        for other in candidates - {task}:
            # Each turn that passes a task by although it might run brings it nearer.
            self.patience[other] += 1
            assert self.patience[other] <= (TAILING_TURNS + 1) * len(TASKS)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.booleans(), background=st.booleans())
    def done(self, data: st.DataObject, more: bool, background: bool) -> None:
        task = data.draw(st.sampled_from(sorted(self.running)))
        self.queue.done(task, more=more, background=background)
        del self.running[task]
        if task in self.again or (more and task not in self.left):
            self._wait(task, background)
        self.again.discard(task)
        self.left.discard(task)

    @rule(task=st.sampled_from(TASKS))
    def discard(self, task: str) -> None:
        self.queue.discard(task)
        self.waiting.pop(task, None)
        self.patience.pop(task, None)
        self.again.discard(task)
        if task in self.running:
            self.left.add(task)

    @rule()
    def every_waiting_task_is_taken_within_a_bounded_number_of_turns(self) -> None:
        """From here on one worker is free, every step ends, and every task always has more to do."""
        for task in sorted(self.running):
            self.done_with(task)
        expected = set(self.waiting)
        classes = dict(self.waiting)
        turns = (TAILING_TURNS + 1) * (len(classes) + 1)
        for _ in range(turns):
            taken_now = self.queue.take()
            if taken_now is None:
                break
            expected.discard(taken_now)
            self.queue.done(taken_now, more=True, background=classes[taken_now])
        assert not expected
        self.patience = dict.fromkeys(self.waiting, 0)

    def done_with(self, task: str) -> None:
        self.queue.discard(task)
        self.queue.done(task, more=False, background=False)
        del self.running[task]
        self.again.discard(task)
        self.left.discard(task)

    @invariant()
    def restores_leave_a_worker_and_the_queue_holds_what_was_asked_for(self) -> None:
        assert sum(self.running.values()) <= self.workers - 1
        assert not set(self.waiting) & set(self.running)
        assert len(self.queue) == len(self.waiting) + len(self.running)

    def _wait(self, task: str, background: bool) -> None:
        if self.waiting.get(task) is not background:
            self.patience[task] = 0
        self.waiting[task] = background


TestWorkshop = Workshop.TestCase


def test_a_group_whose_steps_hang_keeps_a_bounded_number_of_workers_and_others_go_on() -> None:
    queue: FairQueue[str] = FairQueue(workers=3)
    for task in "abcd":
        queue.put(task, background=True, group="hangs")
    assert taken(queue, 3) == ["a", "b", None]
    for task in "ab":
        queue.hang(task)
    queue.put("x", background=True, group="well")
    queue.put("t", background=False, group="hangs")
    assert taken(queue, 3) == ["t", "x", None]
    queue.done("a", more=False, background=True)
    assert queue.take() == "c"
    queue.discard_group("hangs")
    queue.done("b", more=True, background=True)
    queue.done("c", more=True, background=True)
    queue.done("t", more=True, background=False)
    assert taken(queue, 1) == [None]
    assert queue.running("hangs") == []


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("UVW")), unique_by=lambda each: each[0]))
def test_a_task_waits_for_one_step_of_each_other_group_for_each_of_its_own_before_it(
    given: list[tuple[str, str]],
) -> None:
    queue: FairQueue[str] = FairQueue(workers=9)
    for task, group in given:
        queue.put(task, background=False, group=group)
    order = list(iter(queue.take, None))
    group_of = dict(given)
    assert sorted(order) == sorted(group_of)
    for task, group in given:
        before = [group_of[each] for each in order[: order.index(task)]]
        place = [each for each, other in given if other == group].index(task)
        assert before.count(group) == place
        assert all(before.count(other) <= place + 1 for other in "UVW")


RETRY_MS = 1000


class Replica:
    """As much of a replica as the schedule looks at. `looks` counts them."""

    view: SimpleNamespace | None = None
    error: str | None = None
    progress = SimpleNamespace(is_limited=False)

    def __init__(self) -> None:
        self.looks = self.prefetches = 0
        self.is_behind = self.has_read_ahead = False

    @property
    def behind(self) -> bool:
        self.looks += 1
        return self.is_behind

    def check_stall(self, retry_ms: float) -> None:
        assert retry_ms == RETRY_MS

    def want_prefetch(self) -> bool:
        self.prefetches += 1
        return not self.has_read_ahead


class SubmittedSteps:
    def __init__(self) -> None:
        self.submitted: list[Replica] = []

    def submit(self, *replicas: Replica) -> None:
        self.submitted += replicas


class World:
    def __init__(self) -> None:
        self.workers = SubmittedSteps()
        workers: Any = self.workers
        self.schedule = WorkSchedule(workers, retry_ms=RETRY_MS)
        self.learned: list[int] = []
        """The versions whose commit times were read."""

    def poll(self, *replicas: Replica, end: int = 1, batch: bool = False, now_ms: float = 0.0) -> None:
        found: Any = list(replicas)
        history: Any = SimpleNamespace(
            is_commit_time_learned=self.learned.__contains__, learn_commit_time=self.learned.append
        )
        self.schedule.hand_out(found, history, end_version=end, batch_in_progress=batch, now_ms=now_ms)


def test_replicas_are_looked_at_when_the_end_moves_or_they_are_others_and_now_and_then() -> None:
    world, one, two = World(), Replica(), Replica()
    for now_ms in range(10):
        world.poll(one, now_ms=now_ms)
    assert one.looks == 1
    world.poll(one, end=2, now_ms=10)
    world.poll(one, two, end=2, now_ms=11)
    world.poll(one, two, end=2, now_ms=12)
    assert (one.looks, two.looks) == (3, 1)
    world.poll(one, two, end=2, now_ms=RETRY_MS)
    assert (one.looks, two.looks) == (4, 2)


def test_while_every_replica_shows_the_end_they_are_looked_at_more_seldom() -> None:
    world, one, two = World(), Replica(), Replica()
    one.view = two.view = SimpleNamespace(version=1)
    world.poll(one, two)
    world.poll(one, two, now_ms=LOOKS_AT_REST * RETRY_MS - 1)
    assert one.looks == 1
    world.poll(one, two, now_ms=LOOKS_AT_REST * RETRY_MS)
    assert one.looks == 2
    two.view = SimpleNamespace(version=0)
    world.poll(one, two, now_ms=2 * LOOKS_AT_REST * RETRY_MS)
    world.poll(one, two, now_ms=2 * LOOKS_AT_REST * RETRY_MS + RETRY_MS)
    assert one.looks == 4, "one that is not at the end, whatever holds it up, is looked at as often as ever"


def test_the_commit_time_after_a_version_that_is_shown_is_read_once_for_all_and_never_beyond_the_end() -> None:
    """Also of one that was purged: storage would be asked for each replica again and again."""
    world, replicas = World(), [Replica() for _ in range(3)]
    for replica in replicas:
        replica.is_behind, replica.view = True, SimpleNamespace(version=4)
    world.poll(*replicas, end=4)
    assert world.learned == []
    world.poll(*replicas, end=7, now_ms=1)
    world.poll(*replicas, end=8, now_ms=2)
    assert world.learned == [5]


def test_a_replica_that_is_behind_gets_work_and_one_that_failed_only_when_it_is_tried_again() -> None:
    world, fine, failed = World(), Replica(), Replica()
    fine.is_behind = failed.is_behind = True
    failed.error = "a damaged file"
    world.poll(fine, failed)  # the first look is a try
    assert world.workers.submitted == [fine, failed]
    world.poll(fine, failed, end=2, now_ms=1)
    assert world.workers.submitted[2:] == [fine]
    world.poll(fine, failed, end=2, now_ms=RETRY_MS)
    assert world.workers.submitted[3:] == [fine, failed]


def test_while_a_batch_runs_all_read_ahead_but_no_more_often_than_the_floor_allows() -> None:
    world, replica = World(), Replica()
    for now_ms in range(int(2 * PREFETCH_FLOOR_MS)):
        world.poll(replica, batch=True, now_ms=now_ms)
    assert replica.prefetches == len(world.workers.submitted) == 2


PATIENCE_S = 60.0
"""Only a failing test waits that long."""


class Task:
    """Runs `body` in each step and counts; never two steps of it at once."""

    def __init__(self, body: Callable[[int], bool], *, in_background: bool = False) -> None:
        self.in_background = in_background
        self.steps = 0
        self.overlapped = False
        self._body = body
        self._alone = threading.Lock()

    def step(self) -> bool:
        if not self._alone.acquire(blocking=False):
            self.overlapped = True
            return False
        try:
            self.steps += 1
            return self._body(self.steps)
        finally:
            self._alone.release()


class Gate:
    """A step that says when it has begun and ends when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, _: int) -> bool:
        self.begun.set()
        assert self.let_go.wait(PATIENCE_S)
        return False


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(count=2)
    workers.start()
    yield workers
    workers.stop(timeout_s=PATIENCE_S)
    assert not any(thread.is_alive() for thread in workers._threads)


def finished(workers: Workers | WorkerShare, *, in_background: bool = False) -> threading.Event:
    """Set when a task that is submitted now has run."""
    event = threading.Event()

    def body(_: int) -> bool:
        event.set()
        return False

    workers.submit(Task(body, in_background=in_background))
    return event


def test_a_restore_that_blocks_delays_no_tailing_task(workers: Workers) -> None:
    gate = Gate()
    workers.submit(Task(gate, in_background=True))
    workers.submit(Task(gate, in_background=True))
    assert gate.begun.wait(PATIENCE_S)
    for _ in range(20):
        assert finished(workers).wait(PATIENCE_S)
    waiting = finished(workers, in_background=True)
    assert finished(workers).wait(PATIENCE_S)
    assert not waiting.is_set()
    gate.let_go.set()
    assert waiting.wait(PATIENCE_S)


def test_short_steps_are_left_to_one_worker(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    monkeypatch.setattr("understudy_node.replica.workers.SHORT_STEP_S", PATIENCE_S)
    monkeypatch.setattr("understudy_node.replica.workers.HELP_AFTER_S", PATIENCE_S)
    assert finished(workers).wait(PATIENCE_S)
    threads: list[str] = []

    def body(_: int) -> bool:
        threads.append(threading.current_thread().name)
        return False

    workers.submit(*(Task(body) for _ in range(200)))
    wait_until(lambda: len(threads) == 200, what="the steps")
    assert len(set(threads)) == 1


def test_a_step_that_hangs_among_short_ones_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    monkeypatch.setattr("understudy_node.replica.workers.SHORT_STEP_S", PATIENCE_S)
    assert finished(workers).wait(PATIENCE_S)
    gate, ended = Gate(), threading.Semaphore(0)

    def body(step: int) -> bool:
        ended.release()
        return step < 3

    workers.submit(Task(gate), *(Task(body) for _ in range(20)))
    for _ in range(20 * 3):
        assert ended.acquire(timeout=PATIENCE_S)
    assert gate.begun.is_set()
    gate.let_go.set()


def test_a_restore_that_had_to_wait_for_another_runs_beside_tailing_once_that_ends(workers: Workers) -> None:
    first, second, tailing = Gate(), Gate(), Gate()
    workers.submit(Task(first, in_background=True), Task(second, in_background=True), Task(tailing))
    assert first.begun.wait(PATIENCE_S)
    assert tailing.begun.wait(PATIENCE_S)
    assert not second.begun.is_set()
    first.let_go.set()
    assert second.begun.wait(PATIENCE_S)
    for gate in (second, tailing):
        gate.let_go.set()


def test_asking_during_a_step_runs_one_more(workers: Workers) -> None:
    gate = Gate()
    task = Task(gate)
    workers.submit(task)
    assert gate.begun.wait(PATIENCE_S)
    workers.submit(task)
    workers.submit(task)
    gate.let_go.set()
    wait_until(lambda: task.steps == 2, what="the second step")
    workers.stop(timeout_s=PATIENCE_S)
    assert task.steps == 2


def test_no_task_is_in_two_steps_at_once() -> None:
    workers = Workers(count=4)
    workers.start()
    tasks = [Task(lambda step: step < 50, in_background=index % 2 == 0) for index in range(8)]
    for _ in range(10):
        workers.submit(*tasks)
    wait_until(lambda: all(task.steps >= 50 for task in tasks), what="the steps")
    workers.stop(timeout_s=PATIENCE_S)
    assert not any(task.overlapped for task in tasks)
    assert workers.failure is None


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), SystemExit(3)], ids=["an error", "an exit"])
def test_a_failing_step_is_kept_logged_and_stops_all_workers(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def body(_: int) -> bool:
        raise error

    workers = Workers(count=3)
    workers.start()
    with caplog.at_level(logging.ERROR):
        workers.submit(Task(body))
        for thread in workers._threads:
            thread.join(PATIENCE_S)
    assert workers.failure is error
    assert not any(thread.is_alive() for thread in workers._threads)
    assert [getattr(record, "action", None) for record in caplog.records] == ["worker-failed"]
    late = Task(lambda _: False)
    workers.submit(late)
    workers.stop(timeout_s=PATIENCE_S)
    assert late.steps == 0


def test_a_share_whose_steps_hang_keeps_no_other_share_waiting(
    monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    monkeypatch.setattr("understudy_node.replica.workers.HANGS_AFTER_S", 0.0)
    hangs, well = WorkerShare(workers), WorkerShare(workers)
    gates = [Gate(), Gate()]
    hangs.submit(*map(Task, gates))
    for gate in gates:
        assert gate.begun.wait(PATIENCE_S)
    for _ in range(20):
        assert finished(well).wait(PATIENCE_S)
    for gate in gates:
        gate.let_go.set()
    hangs.stop(timeout_s=PATIENCE_S)
    wait_until(lambda: len(workers._threads) == 2, what="the end of the workers for hanging steps")
