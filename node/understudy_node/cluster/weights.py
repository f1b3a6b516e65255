"""The weight of tasks and nodes, by which replicas that could lie at several nodes are placed (values).

The tasks of an operator weigh the same: Spark spreads their keys by a hash. So a weight is known for a task whose
replica is not restored yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from understudy_shared.bus.messages import Heartbeat

MIN_STEP_BYTES: Final = 64 * 1024 * 1024
MIN_STEP_READS: Final = 20
"""The least difference that counts, in reads a second."""

STEPS_PER_MEAN: Final = 8
"""A difference counts from an eighth of what the nodes bear on average."""


@dataclass(frozen=True)
class Weights:
    """`operator_bytes` are those of one replica of an operator's task, by operator; `reads` a second are those of one
    task. The rest is what the other applications of each node's process bear there.
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
"""All tasks and nodes weigh the same."""


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
