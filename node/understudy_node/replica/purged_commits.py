"""Commits that Spark has purged, where their state files are still needed: a retained version may rest on a snapshot
from before the first retained commit, and on the changelogs between the two.

In format v2 the lineage in the changelog of that version names the attempts since the snapshot. In format v1 the names
of the files are enough. Settings change only at a restart, so the oldest known batch is the best substitute for theirs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.follow.history import CommitHistory, CommitRecord
from understudy_node.replica.base_choice import committed_lineage
from understudy_node.replica.replica_context import StorePlace


class ReachingHistory(CommitHistory):
    """The committed history as the replica of one store needs it to restore `version`: with substitutes for the purged
    commits before that.
    """

    def __init__(self, history: CommitHistory, files: CheckpointFiles, place: StorePlace, version: int) -> None:
        super().__init__(files)
        self._history = history
        self._place = place
        self._version = version

    def record(self, version: int) -> CommitRecord | None:
        known = self._history.record(version)
        if known is not None or not 1 <= version < self._version:
            return known
        oldest = self._history.nearest(version)
        if oldest.version > self._version:
            return None
        unique_ids = None
        if oldest.commit.unique_ids is not None:
            task, index = self._place.task, self._place.index
            named = self._lineage.get(version)
            if named is None:
                return None
            stores = (*("",) * index, named)  # the attempts of its other stores are not asked for here
            unique_ids = {task.operator_id: (*((),) * task.partition, stores)}
        commit = replace(oldest.commit, batch_id=version - 1, unique_ids=unique_ids)
        return replace(oldest, version=version, commit=commit, committed_at_ns=0, digest="")

    @cached_property
    def _lineage(self) -> dict[int, str]:
        """The attempts that the changelog of the version names, by version."""
        items = committed_lineage(self._place, self._files, self._history.record(self._version))
        return {item.version: item.unique_id for item in items}
