"""Background tasks have an owner, and long work leaves turns of the loop to others."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest
from tests.support.bus.documents import eventually

from understudy_shared.base import background
from understudy_shared.base.background import Supervisor, in_slices, shielded


async def forever() -> None:
    await asyncio.Event().wait()


async def died(supervisor: Supervisor) -> None:
    async def is_dead() -> bool:
        return supervisor.failure is not None

    await eventually(is_dead, what="a failure")


async def ends() -> None: ...


async def fails() -> None:
    raise OSError("disk on fire")


@pytest.mark.parametrize(("task", "why"), [(fails, "OSError('disk on fire')"), (ends, "RuntimeError('it ended')")])
async def test_a_task_that_raises_or_ends_is_a_failure_with_name_and_reason(
    task: Callable[[], Coroutine[Any, Any, None]], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = Supervisor()
    supervisor.start("tail", task())
    supervisor.start("beat", forever())
    with caplog.at_level(logging.ERROR):
        await died(supervisor)
    assert supervisor.failure is not None
    assert supervisor.failure[0] == "tail"
    assert supervisor.dead == f"background task 'tail' died: {why}"
    assert [record.getMessage() for record in caplog.records] == ["background task tail died"]
    await supervisor.stop()


async def test_stopping_cancels_in_reverse_order_of_the_start() -> None:
    ended: list[str] = []

    async def tells(name: str) -> None:
        try:
            await forever()
        finally:
            ended.append(name)

    supervisor = Supervisor()
    for name in ("first", "second", "third"):
        supervisor.start(name, tells(name))
    await asyncio.sleep(0)
    await supervisor.stop()
    assert ended == ["third", "second", "first"]
    await supervisor.stop()


async def test_stopping_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    monkeypatch.setattr(background, "STOP_TIMEOUT_S", 0.01)
    supervisor = Supervisor()
    supervisor.start("stubborn", stubborn())
    await asyncio.sleep(0)
    await supervisor.stop()
    release.set()
    await asyncio.sleep(0)


async def test_a_task_that_lost_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def loses_one() -> None:
        with suppress(asyncio.CancelledError):  # as asyncio.wait_for of Python 3.11, when its work is done just then
            await forever()
        try:
            await forever()
        finally:
            ended.set()

    monkeypatch.setattr(background, "CANCEL_AGAIN_S", 0.01)
    supervisor = Supervisor()
    supervisor.start("loses one", loses_one())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert ended.is_set()
    assert supervisor.failure is None


async def test_a_shielded_task_goes_on_without_its_waiter_and_what_it_raises_then_is_not_logged() -> None:
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    go, steps = asyncio.Event(), list[str]()

    async def act() -> None:
        await go.wait()
        steps.append("went on")
        raise ValueError

    task = asyncio.ensure_future(act())
    waiter = asyncio.ensure_future(shielded(task))
    await asyncio.sleep(0)
    waiter.cancel()
    with suppress(asyncio.CancelledError):
        await waiter
    go.set()
    await asyncio.wait({task})
    del task
    gc.collect()
    assert (waiter.cancelled(), steps, logged) == (True, ["went on"], [])


def work(steps: int) -> Generator[None, None, int]:
    for _ in range(steps):
        yield
    return steps


class Others:
    turns = 0

    async def run(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


async def turns_during(steps: int) -> int:
    others = Others()
    task = asyncio.get_running_loop().create_task(others.run())
    assert await in_slices(work(steps)) == steps
    task.cancel()
    return others.turns


async def test_other_tasks_run_once_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "SLICE_S", 0)
    assert await turns_during(50) == 50
    monkeypatch.setattr(background, "SLICE_S", 3600)
    assert await turns_during(50) == 0
