"""Long work gives way to other tasks, once for each slice."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from understudy_shared.base import background
from understudy_shared.base.background import in_slices


def work(steps: int) -> Generator[None, None, int]:
    for _ in range(steps):
        yield
    return steps


class Others:
    """A task that counts its turns."""

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
