"""The weight of tasks and nodes, and the exchanges that even it out while the numbers of replicas stay even (pure).

The tasks of an operator weigh the same: Spark spreads their keys by a hash. So the weight of a task is known before its
replica is restored.

Two nodes exchange replicas of different weight and the same role, or the one with an extra replica passes one on. So
before and after a node has at most one replica more than another, and the extra replica lies where it weighs least.
Nodes that differ by less than two steps exchange nothing, and an exchange gains at least half of what has to be
restored for it. Each lowers the sum of the squared loads, so exchanges end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from understudy_shared.bus.messages import AssignedTask, Heartbeat

MIN_STEP_BYTES: Final = 64 * 1024 * 1024
MIN_STEP_READS: Final = 20

STEPS_PER_MEAN: Final = 8
"""A difference counts from an eighth of what the nodes bear on average."""


@dataclass(frozen=True)
class Weights:
    """`operator_bytes` is the size of one replica of an operator's task, by operator; `reads` is one task's reads a
    second. The rest is the load of the other applications in each node's process.
    """

    operator_bytes: Mapping[str, int] = field(default_factory=dict)
    reads: float = 0.0
    others_bytes: Mapping[str, int] = field(default_factory=dict)
    others_reads: Mapping[str, int] = field(default_factory=dict)

    def bytes_of(self, task: str) -> int:
        """Return the bytes of a replica of the task; 0 while they are not known."""
        return self.operator_bytes.get(task.partition("_")[0], 0)

    def rank_by_bytes(self, node: str) -> int:
        """Return how many steps of bytes the other applications have at the node."""
        return self.others_bytes.get(node, 0) // self._step_bytes

    def rank_by_reads(self, node: str) -> int:
        """Return how many steps of reads the other applications have at the node."""
        return self.others_reads.get(node, 0) // self._step_reads

    @cached_property
    def _step_bytes(self) -> int:
        return step(self.others_bytes.values(), MIN_STEP_BYTES)

    @cached_property
    def _step_reads(self) -> int:
        return step(self.others_reads.values(), MIN_STEP_READS)


EVEN: Final = Weights()


def step(loads: Iterable[float], least: int) -> int:
    """Return the difference between two nodes that counts, by the loads of all."""
    known = list(loads)
    return max(least, round(sum(known) / len(known) / STEPS_PER_MEAN)) if known else least


def weights_of(heartbeats: Iterable[Heartbeat], tasks: int) -> Weights:
    """Return the weights that the nodes of an application with so many tasks report.

    A replica counts with the most that a node reports: one that is being restored has less than it will have.
    """
    loads = {each.node_id: each.load for each in heartbeats}
    operator_bytes: dict[str, int] = {}
    for load in loads.values():
        for operator, number in load.operator_bytes.items():
            operator_bytes[operator] = max(number, operator_bytes.get(operator, 0))
    return Weights(
        operator_bytes=operator_bytes,
        reads=sum(load.reads_per_s for load in loads.values()) / max(1, tasks),
        others_bytes={node: load.others_bytes for node, load in loads.items()},
        others_reads={node: load.others_reads_per_s for node, load in loads.items()},
    )


MAX_TRIED = 4
"""Number of the heaviest nodes that may give, and of the lightest that may take: not all pairs of a large cluster."""


class ReplicaSwap(NamedTuple):
    """A replica that one node passes to another, and one that it gets in return, if any. If only a role is passed, the
    taker is a standby already.
    """

    giver: str
    taker: str
    given: str
    returned: str | None = None
    is_role: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        return (self.given,) if self.returned is None else (self.given, self.returned)

    def moves(self) -> Iterator[tuple[str, str, str]]:
        """Yield each task with the node that gives it up, and the one that takes it."""
        yield self.given, self.giver, self.taker
        if self.returned is not None:
            yield self.returned, self.taker, self.giver


class Weighed(NamedTuple):
    """The weights as of a numbered measurement, and the exchange in progress."""

    look: int = 0
    weights: Weights = EVEN
    exchange: ReplicaSwap | None = None


UNWEIGHED: Final = Weighed()


_Gain = tuple[float, bool, ReplicaSwap]
"""By how much the heavier node becomes lighter, whether only one replica moves, and the exchange. So of equal gains the
one that moves less is greater.
"""


def next_exchange(tasks: Mapping[str, AssignedTask], zones: Mapping[str, str], weights: Weights) -> ReplicaSwap | None:
    """Return the next exchange of an assignment at rest over the nodes of `zones`; None if there is nothing to gain."""
    held = _HeldTasks(tasks, zones)
    loads: dict[str, float] = {
        node: weights.others_bytes.get(node, 0) + sum(map(weights.bytes_of, held.tasks[node])) for node in zones
    }
    for giver, taker in _pairs(loads, 2 * step(loads.values(), MIN_STEP_BYTES)):
        found = max(_exchanges(held, weights, giver, taker, loads[giver] - loads[taker]), default=None)
        if found is not None:
            return found[-1]
    return _next_role(held, weights)


class _HeldTasks:
    """The tasks and actives of each node."""

    def __init__(self, tasks: Mapping[str, AssignedTask], zones: Mapping[str, str]) -> None:
        self.zones = zones
        self.holders = {task: assigned.holders for task, assigned in tasks.items()}
        self.tasks: dict[str, set[str]] = {node: set() for node in zones}
        self.actives: dict[str, set[str]] = {node: set() for node in zones}
        for task, assigned in tasks.items():
            for node in assigned.holders:
                self.tasks[node].add(task)
            if assigned.active is not None:
                self.actives[assigned.active].add(task)

    def of_role(self, node: str, is_active: bool) -> Set[str]:
        return self.actives[node] if is_active else self.tasks[node] - self.actives[node]

    def has_one_more(self, giver: str, taker: str, is_active: bool) -> bool:
        """Whether a replica may be passed on without a return: the numbers of both nodes swap."""
        more_replicas = len(self.tasks[giver]) > len(self.tasks[taker])
        return more_replicas and len(self.of_role(giver, is_active)) > len(self.of_role(taker, is_active))

    def would_crowd(self, task: str, giver: str, taker: str) -> bool:
        """Whether a task would have all its replicas in one zone by the move alone."""
        others = {self.zones[node] for node in self.holders[task] if node != giver}
        return others == {self.zones[taker]} != {self.zones[giver]}


def _pairs(loads: Mapping[str, float], gap: float) -> Iterator[tuple[str, str]]:
    """Yield pairs of a heavy and a light node that differ by `gap` at least, the heaviest and the lightest first."""
    in_order = sorted(loads, key=lambda node: (loads[node], node))
    for giver in reversed(in_order[-MAX_TRIED:]):
        for taker in in_order[:MAX_TRIED]:
            if loads[giver] - loads[taker] >= gap:
                yield giver, taker


def _exchanges(held: _HeldTasks, weights: Weights, giver: str, taker: str, gap: float) -> Iterator[_Gain]:
    """Yield the exchanges that make the heavier of two nodes lighter, one for each role and weight."""
    for is_active in (False, True):
        given = _movable(held, weights, giver, taker, is_active)
        returned = _movable(held, weights, taker, giver, is_active)
        for weight, task in given.items():
            for back, task_back in returned.items():
                gain = min(weight - back, gap - weight + back)
                if gain >= max(MIN_STEP_BYTES, (weight + back) / 2):
                    yield (gain, False, ReplicaSwap(giver, taker, task, task_back))
            gain = min(weight, gap - weight)
            if gain >= max(MIN_STEP_BYTES, weight / 2) and held.has_one_more(giver, taker, is_active):
                yield (gain, True, ReplicaSwap(giver, taker, task))


def _movable(held: _HeldTasks, weights: Weights, giver: str, taker: str, is_active: bool) -> dict[int, str]:
    return {
        weights.bytes_of(task): task
        for task in sorted(held.of_role(giver, is_active) - held.tasks[taker], reverse=True)
        if not held.would_crowd(task, giver, taker)
    }


def _next_role(held: _HeldTasks, weights: Weights) -> ReplicaSwap | None:
    """Return a role to pass from a node with one active more to a standby at a node that is read less."""
    loads = {node: weights.others_reads.get(node, 0) + weights.reads * len(held.actives[node]) for node in held.zones}
    least = step(loads.values(), MIN_STEP_READS)
    for giver, taker in _pairs(loads, 2 * least):
        is_even = len(held.actives[giver]) > len(held.actives[taker]) and (
            len(held.tasks[giver]) <= len(held.tasks[taker])
        )
        common = held.actives[giver] & held.tasks[taker]
        if is_even and common and min(weights.reads, loads[giver] - loads[taker] - weights.reads) >= least:
            return ReplicaSwap(giver, taker, min(common), is_role=True)
    return None
