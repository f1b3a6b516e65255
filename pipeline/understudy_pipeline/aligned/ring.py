"""How the records of a batch are shared out over tasks: KIP-41's `max.poll.records`, made fair.

Kafka's consumer drains what it fetched partition by partition and promises nothing. Here the tasks that have records
ready stand in a ring; each gets the same share, and where the budget runs out the next batch begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

UNBOUNDED = -1


class Shares(NamedTuple):
    """`allowed` records of each task, and the task that has its turn first in the next batch."""

    allowed: Mapping[int, int]
    next_first: int


def share(available: Mapping[int, int], *, budget: int, first: int) -> Shares:
    """Of the records `available` of each task, at most `budget` together; all that there are, or all of the budget.

    No task that wants more gets less than another by over 1, and which one gets more rotates: no task waits for more
    batches than there are tasks. `first` need not be a task any more. A budget of -1 has no end.
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
