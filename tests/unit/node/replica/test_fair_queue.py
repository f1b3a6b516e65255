"""Which task works next: one step per task at a time, no task starves, and the last worker never restores."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from understudy_node.replica.workers import TAILING_TURNS, FairQueue

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


def test_asking_while_a_step_runs_means_exactly_one_more() -> None:
    queue = queue_of(tailing="a")
    assert queue.take() == "a"
    queue.put("a", background=False)
    queue.put("a", background=False)
    assert queue.take() is None
    queue.done("a", more=True, background=False)
    assert taken(queue, 2) == ["a", None]
    queue.done("a", more=False, background=False)
    assert queue.take() is None
    assert len(queue) == 0


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
