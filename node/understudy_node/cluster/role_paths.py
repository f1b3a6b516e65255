"""Finds chains of nodes along which a role or a replica is passed on (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

Step = tuple[str, str, str]
"""A giver, a task, and the node that takes it."""


class FoundPath(NamedTuple):
    """The shortest chain from a node to an end; empty without one. `reached` are the nodes that were looked at."""

    steps: list[Step]
    reached: Collection[str]


def find_path(
    start: str,
    is_end: Callable[[str], bool],
    gives: Callable[[str], Iterable[str]],
    takes: Callable[[str], Iterable[str]],
) -> FoundPath:
    """Find a chain from `start`, breadth first.

    It stops at the first end in sight: looking at the nodes before it in the queue would be a look at nearly all tasks
    for each role that moves.
    """
    came: dict[str, tuple[str, str]] = {}
    queue = deque([] if is_end(start) else [start])
    while queue:
        node = queue.popleft()
        for task in sorted(gives(node)):
            for taker in sorted(takes(task)):
                if taker != start and taker not in came:
                    came[taker] = (node, task)
                    if is_end(taker):
                        return FoundPath(_chain(came, start, taker), came)
                    queue.append(taker)
    return FoundPath([], {start, *came})


def _chain(came: Mapping[str, tuple[str, str]], start: str, end: str) -> list[Step]:
    path, node = [], end
    while node != start:
        giver, task = came[node]
        path.append((giver, task, node))
        node = giver
    return path
