"""Shares the record budget of a batch among tasks: KIP-41's `max.poll.records`, made fair (round robin).

Kafka's consumer drains one partition after another and promises no fairness. Here tasks with records form a ring. Each
gets an equal share, and the next batch begins with the task at which the budget ran out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

UNBOUNDED = -1


class Shares(NamedTuple):
    """The number of records that each task may take, and the task that is served first in the next batch."""

    allowed: Mapping[int, int]
    next_first: int


def share(available: Mapping[int, int], *, budget: int, first: int) -> Shares:
    """Share `budget` records among tasks that have `available` records each. A budget of -1 is unbounded.

    The result uses the whole budget, or all available records. Tasks that want more get equal shares, give or take one
    record, and the extra record rotates. So no task waits for more batches than there are tasks. `first` may be a task
    that no longer exists.
    """
    if budget == UNBOUNDED or sum(available.values()) <= budget:
        return Shares(dict(available), first)
    ring = _ring(available, first)
    allowed, left, last = dict.fromkeys(available, 0), budget, ring[-1]
    while left:
        wanting = [task for task in ring if allowed[task] < available[task]]
        quantum = max(1, left // len(wanting))
        for task in wanting[:left]:
            given = min(quantum, available[task] - allowed[task])
            allowed[task] += given
            left -= given
            last = task
    return Shares(allowed, ring[(ring.index(last) + 1) % len(ring)])


def _ring(tasks: Mapping[int, int], first: int) -> Sequence[int]:
    return sorted(tasks, key=lambda task: (task < first, task))
