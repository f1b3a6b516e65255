"""Long work on the event loop, in slices of a millisecond between which other tasks run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.001

T = TypeVar("T")


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Return the result of work that yields wherever it may be interrupted."""
    until_s = perf_counter() + SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found
        if perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = perf_counter() + SLICE_S


async def sliced(things: Iterable[T]) -> AsyncIterator[list[T]]:
    """Yield the things in order, those of one slice at a time."""
    made: list[T] = []
    until_s = perf_counter() + SLICE_S
    for each in things:
        made.append(each)
        if perf_counter() >= until_s:
            yield made
            await asyncio.sleep(0)  # a consumer may take a list without giving way to other tasks
            made = []
            until_s = perf_counter() + SLICE_S
    if made:
        yield made
