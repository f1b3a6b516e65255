"""The tasks of a layout, the replicas that each has, and those that it should have (values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class TaskReplicas:
    """The nodes that have a replica of a task now: live ones by role (`ready` are caught up), and those away."""

    active: str | None
    standbys: frozenset[str]
    warmups: frozenset[str]
    ready: frozenset[str]
    versions: Mapping[str, int]
    """The version of each replica that can be read."""
    away: frozenset[str] = frozenset()
    """Nodes that do not live, but keep their place."""

    @property
    def settled(self) -> frozenset[str]:
        """Live nodes whose replica counts: all but the warm-ups."""
        return self.standbys if self.active is None else self.standbys | {self.active}

    @property
    def everyone(self) -> frozenset[str]:
        """All live nodes that have a replica."""
        return self.settled | self.warmups


@dataclass(frozen=True, slots=True)
class Target:
    """The nodes that should have a task."""

    nodes: frozenset[str]
    active: str


class TaskSet(NamedTuple):
    """All tasks of one layout of one lineage, by their keys."""

    lineage: str
    partitions: int
    keys: Sequence[str]
