"""The shared surroundings of a node's replicas, and the location of one store of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.counters import Measures
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.engine.scans import ScanOrder
from understudy_node.follow.history import CommitHistory, CommitRecord
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.past_versions import PastVersions
from understudy_node.replica.pinned_versions import PinnedViews
from understudy_shared.base.words import Lineage, TaskId


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Shared parts of all replicas. `overlay_max_bytes`: limit on the changes that a store partition holds in memory
    above its base.

    `ceiling` returns the highest version that may be shown, None for no limit. `measures` are the node's; `pinned` are
    the older versions that readers use, `past` opens them.
    """

    files: CheckpointFiles
    history: CommitHistory
    disk: LocalBases
    cache: BlockCache
    overlay_max_bytes: int
    ceiling: Callable[[], int | None] = lambda: None
    measures: Measures = field(default_factory=Measures)
    pinned: PinnedViews = field(default_factory=PinnedViews)
    past: PastVersions = field(default_factory=PastVersions)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """One store of a task: its directory in the checkpoint, and its index in the commit's unique ids.

    `fits` says whether a version was written in the layout that the task belongs to. Files of another layout are never
    read: there, the partition holds other keys. With an `order`, readers scan it: its keys are stored in that order,
    and sorted before a version is shown. One that `has_families` is read only from a snapshot on, because changelogs
    lack their ids.
    """

    task: TaskId
    lineage: Lineage
    name: str
    directory: str
    index: int
    fits: Callable[[CommitRecord], bool]
    order: ScanOrder | None = None
    has_families: bool = False

    def unique_id(self, record: CommitRecord) -> str | None:
        """Format v2: the attempt that won the version; None in format v1."""
        return record.unique_id(self.task.operator_id, self.task.partition, self.index)


def file_name(version: int, unique_id: str | None, kind: str) -> str:
    """Return Spark's name of a state file."""
    return f"{version}.{kind}" if unique_id is None else f"{version}_{unique_id}.{kind}"
