"""The workers run steps fairly, keep what broke, and stop on request. Tests wait for events, never for time to pass."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from understudy_node.replica.workers import Workers, WorkerShare

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

    def __init__(self, *, more: bool = False) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self._more = more

    def __call__(self, _: int) -> bool:
        self.begun.set()
        assert self.let_go.wait(PATIENCE_S)
        return self._more


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(count=2)
    workers.start()
    yield workers
    workers.stop(timeout_s=PATIENCE_S)
    assert not any(thread.is_alive() for thread in workers._threads)


def finished(workers: Workers, *, in_background: bool = False) -> threading.Event:
    """Set when a task that is submitted now has run."""
    event = threading.Event()

    def body(_: int) -> bool:
        event.set()
        return False

    workers.submit(Task(body, in_background=in_background))
    return event


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that has no event."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.001)


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
    wait_until(lambda: len(threads) == 200)
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
    begun, let_go, ran_again = threading.Event(), threading.Event(), threading.Event()

    def body(step: int) -> bool:
        if step == 1:
            begun.set()
            assert let_go.wait(PATIENCE_S)
        else:
            ran_again.set()
        return False

    task = Task(body)
    workers.submit(task)
    assert begun.wait(PATIENCE_S)
    workers.submit(task)
    workers.submit(task)
    let_go.set()
    assert ran_again.wait(PATIENCE_S)
    workers.stop(timeout_s=PATIENCE_S)
    assert task.steps == 2


def test_no_task_is_in_two_steps_at_once() -> None:
    workers = Workers(count=4)
    workers.start()
    done = [threading.Event() for _ in range(8)]

    def body_of(event: threading.Event) -> Callable[[int], bool]:
        def body(step: int) -> bool:
            if step == 50:
                event.set()
            return step < 50

        return body

    tasks = [Task(body_of(event), in_background=index % 2 == 0) for index, event in enumerate(done)]
    for _ in range(10):
        for task in tasks:
            workers.submit(task)
    assert all(event.wait(PATIENCE_S) for event in done)
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


def setting(event: threading.Event) -> Callable[[int], bool]:
    """A step that sets an event."""

    def body(_: int) -> bool:
        event.set()
        return False

    return body


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
        ended = threading.Event()
        well.submit(Task(setting(ended)))
        assert ended.wait(PATIENCE_S)
    for gate in gates:
        gate.let_go.set()
    hangs.stop(timeout_s=PATIENCE_S)
    wait_until(lambda: len(workers._threads) == 2)
