"""What all replicas of a node share, and where one store of a task lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.follow.history import CommitRecord, History
from understudy_node.replica.local_bases import LocalBases
from understudy_shared.words import Lineage, TaskId


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Shared by all replicas. `overlay_max_bytes`: changes a store partition keeps in memory above its base.

    `ceiling` is a version above which nothing is shown, None for no such limit.
    """

    files: CheckpointFiles
    history: History
    disk: LocalBases
    cache: BlockCache
    overlay_max_bytes: int
    ceiling: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, slots=True)
class StorePlace:
    """One store of a task: its directory in the checkpoint, and its index in the commit's unique ids.

    `fits` says whether a version was written in the layout that the task belongs to. Files of another layout are never
    read for it: in the same partition there are other keys.
    """

    task: TaskId
    lineage: Lineage
    name: str
    directory: str
    index: int
    fits: Callable[[CommitRecord], bool]

    def unique_id(self, record: CommitRecord) -> str | None:
        """Format v2: the attempt that won the version; None in format v1."""
        return record.unique_id(self.task.operator_id, self.task.partition, self.index)


def file_name(version: int, unique_id: str | None, kind: str) -> str:
    """How Spark names a state file."""
    return f"{version}.{kind}" if unique_id is None else f"{version}_{unique_id}.{kind}"
