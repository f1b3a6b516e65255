"""Measures the load of a node for its heartbeats: the size of its replicas, and the reads that it answers.

The tasks of an operator are of about the same size, so a few of them are looked at. Used on the serving loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from understudy_node.node import Node
from understudy_node.replica.task import TaskReplica
from understudy_shared.bus.messages import Load

SAMPLED: Final = 8
"""Replicas of an operator that are looked at."""

MEASURE_AGAIN_MS: Final = 30_000
"""Time over which reads are counted."""


class Borne(NamedTuple):
    """The load of one application at a node."""

    held_bytes: int
    reads_per_s: int


class ProcessLoad:
    """The load of a process, by application."""

    def __init__(self) -> None:
        self._borne: dict[str, Borne] = {}

    def note(self, application_id: str, borne: Borne | None) -> None:
        """Take the load of an application; None when it leaves."""
        if borne is None:
            self._borne.pop(application_id, None)
        else:
            self._borne[application_id] = borne

    def of_others(self, application_id: str) -> Borne:
        """Return the load of all applications but one."""
        others = [borne for each, borne in self._borne.items() if each != application_id]
        return Borne(sum(each.held_bytes for each in others), sum(each.reads_per_s for each in others))


class LoadMeter:
    """The load of one application at this node, measured anew from time to time."""

    def __init__(self, node: Node, process: ProcessLoad) -> None:
        self._node = node
        self._application_id = node.settings.application
        self._process = process
        self._operator_bytes: Mapping[str, int] = {}
        self._borne = Borne(0, 0)
        self._measured_ms: float | None = None
        self._answered = 0

    def read(self, now_ms: float) -> Load:
        """Return the load as of the last measurement, and that of the other applications."""
        if self._measured_ms is None or now_ms - self._measured_ms >= MEASURE_AGAIN_MS or not self._operator_bytes:
            self._measure(now_ms)
        others = self._process.of_others(self._application_id)
        return Load(
            operator_bytes=dict(self._operator_bytes),
            reads_per_s=self._borne.reads_per_s,
            others_bytes=others.held_bytes,
            others_reads_per_s=others.reads_per_s,
        )

    def stop(self) -> None:
        """Bear nothing from now on."""
        self._process.note(self._application_id, None)

    def _measure(self, now_ms: float) -> None:
        generation = self._node.generation
        held = _by_operator(() if generation is None else generation.replicas)
        self._operator_bytes = {operator: size for operator, some in held.items() if (size := _mean_bytes(some))}
        total = sum(self._operator_bytes.get(operator, 0) * len(some) for operator, some in held.items())
        reads_per_s = self._borne.reads_per_s
        if self._measured_ms is None or now_ms - self._measured_ms >= MEASURE_AGAIN_MS:
            answered, before_ms = self._node.measures.lags.total, self._measured_ms
            if before_ms is not None:
                reads_per_s = round((answered - self._answered) * 1000 / (now_ms - before_ms))
            self._answered, self._measured_ms = answered, now_ms
        self._borne = Borne(total, reads_per_s)
        self._process.note(self._application_id, self._borne)


def _by_operator(replicas: Sequence[TaskReplica]) -> dict[str, list[TaskReplica]]:
    found: dict[str, list[TaskReplica]] = {}
    for replica in replicas:
        found.setdefault(str(replica.task.operator_id), []).append(replica)
    return found


def _mean_bytes(replicas: Sequence[TaskReplica]) -> int:
    """Return the mean size of some replicas, of those that show a version; 0 while they all restore."""
    sizes = [size for each in replicas[:SAMPLED] if (size := each.stored_bytes) is not None]
    return round(sum(sizes) / len(sizes)) if sizes else 0
