"""Commits that Spark has purged, where their state files are still needed: a retained version may rest on a snapshot
from before the first retained commit, and on the changelogs between the two.

In format v2 the lineage in a committed changelog names the attempts since that snapshot; in format v1 the names of the
files are enough. Settings change only at a restart, so the oldest known batch is the best substitute for theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.follow.history import CommitHistory, CommitRecord
from understudy_node.replica.base_choice import committed_lineage
from understudy_node.replica.surroundings import StorePlace


class HistoryOf(CommitHistory):
    """The committed history as the reader of one version needs it: with substitutes for purged commits before it."""

    def __init__(self, history: CommitHistory, files: CheckpointFiles, places: Sequence[StorePlace], version: int) -> None:
        super().__init__(files)
        self._history = history
        self._places = places
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
            named = [self._lineages.get((place.index, version)) for place in self._places]
            if None in named:
                return None
            task, by_index = self._places[0].task, {place.index: name for place, name in zip(self._places, named, strict=True)}
            stores = tuple(by_index.get(index) or "" for index in range(max(by_index) + 1))
            unique_ids = {task.operator_id: (*((),) * task.partition, stores)}
        commit = replace(oldest.commit, batch_id=version - 1, unique_ids=unique_ids)
        return replace(oldest, version=version, commit=commit, committed_at_ns=0, digest="")

    @cached_property
    def _lineages(self) -> dict[tuple[int, int], str]:
        """The attempts that the version's own changelogs name, by store index and version."""
        record = self._history.record(self._version)
        return {
            (place.index, item.version): item.unique_id
            for place in self._places
            for item in committed_lineage(place, self._files, record)
        }
