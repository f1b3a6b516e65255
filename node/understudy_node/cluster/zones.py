"""Moves standbys to another zone than their active (KIP-708's rack awareness), keeping the balance (pure).

A task is crowded if all its replicas, two at least, are in one zone. It exchanges one of its standbys with a task
that has two replicas outside that zone; afterwards neither is crowded, and every node has as many replicas, actives
and standbys as before. Such a task exists unless the zone has more than `tasks * (copies - 1)` replicas. A zone that
has more passes a standby to a node of another zone that has fewer replicas and fewer standbys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set

Move = tuple[str, str, str]
"""A task, the node that gives up a replica of it, the node that takes it."""


def spread(
    zones: Mapping[str, str],
    nodes_of: Mapping[str, Set[str]],
    active: Mapping[str, str],
    worth: Callable[[str, str], int],
) -> Iterator[Move]:
    """Yield moves of standbys after which as few tasks as possible are crowded.

    `nodes_of` and `active` are the placement, all of it on nodes in `zones`. `worth(task, node)` is the loss with
    the task's replica at the node: the replica with the least loss moves, preferably to a node that has part of it.
    """
    return _Spread(zones, nodes_of, active, worth).moves()


class _Spread:
    """The placement while standbys are moved."""

    def __init__(
        self,
        zones: Mapping[str, str],
        nodes_of: Mapping[str, Set[str]],
        active: Mapping[str, str],
        worth: Callable[[str, str], int],
    ) -> None:
        self._zones = zones
        self._active = active
        self._worth = worth
        self._nodes_of = {task: set(nodes) for task, nodes in nodes_of.items()}
        self._replicas = Counter(dict.fromkeys(zones, 0))
        self._standbys = Counter(dict.fromkeys(zones, 0))
        for task, nodes in nodes_of.items():
            self._replicas.update(nodes)
            self._standbys.update(nodes - {active[task]})

    def moves(self) -> Iterator[Move]:
        crowded = {task: zone for task in self._nodes_of if (zone := self._crowded_in(task)) is not None}
        for zone in sorted(set(crowded.values())):
            # Partners for an exchange, crowded tasks of other zones last, so that they are taken first: both profit.
            others = [task for task in self._nodes_of if len(self._outside(task, zone)) > 1]
            others.sort(key=lambda task: (task not in crowded, task), reverse=True)
            for task in [each for each, where in crowded.items() if where == zone]:
                if self._crowded_in(task) is not None:
                    for moved in self._exchange(task, zone, others) or self._hand_over(task, zone):
                        self._move(*moved)
                        yield moved

    def _exchange(self, task: str, zone: str, others: list[str]) -> list[Move]:
        """Exchange a standby with the last of `others` that still has two replicas outside the zone."""
        while others:
            other = others[-1]
            outside = self._outside(other, zone)
            mine = self._standbys_of(task) - self._nodes_of[other]
            theirs = (self._standbys_of(other) & outside) - self._nodes_of[task]
            if len(outside) > 1 and mine and theirs:
                giver = min(mine, key=lambda node: (self._worth(task, node) - self._worth(other, node), node))
                taker = min(theirs, key=lambda node: (self._worth(other, node) - self._worth(task, node), node))
                return [(task, giver, taker), (other, taker, giver)]
            others.pop()
        return []

    def _hand_over(self, task: str, zone: str) -> list[Move]:
        """Move a standby to a node of another zone with fewer replicas and fewer standbys."""
        pairs = [
            (self._worth(task, giver) - self._worth(task, taker), giver, taker)
            for giver in self._standbys_of(task)
            for taker in self._zones
            if self._zones[taker] != zone
            and self._replicas[taker] < self._replicas[giver]
            and self._standbys[taker] < self._standbys[giver]
        ]
        return [(task, giver, taker) for _, giver, taker in sorted(pairs)[:1]]

    def _move(self, task: str, giver: str, taker: str) -> None:
        self._nodes_of[task].remove(giver)
        self._nodes_of[task].add(taker)
        for counts in (self._replicas, self._standbys):
            counts[giver] -= 1
            counts[taker] += 1

    def _crowded_in(self, task: str) -> str | None:
        """Return the zone of all replicas of a crowded task; None for other tasks."""
        nodes = self._nodes_of[task]
        found = {self._zones[node] for node in nodes}
        return found.pop() if len(nodes) > 1 and len(found) == 1 else None

    def _outside(self, task: str, zone: str) -> set[str]:
        return {node for node in self._nodes_of[task] if self._zones[node] != zone}

    def _standbys_of(self, task: str) -> set[str]:
        return self._nodes_of[task] - {self._active[task]}
