"""Notices that the query was started again with other state: Spark writes operator metadata with a run's first batch.

The name of the metadata is the number of that batch, so it is known before it is there: one stat for an operator and a
commit, and nothing between commits. Only `transformWithState` may change its columns, or its variables. An operator
without metadata gets one, of one name, when a query of Spark 3 goes on with Spark 4.
"""

from __future__ import annotations

from typing import Final

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.state_variables import TRANSFORM

MAX_STATS: Final = 64
"""Limit on the stats of one poll: with more commits at once the metadata is read without them, which costs less."""


class NewSchemas:
    """The batches that were looked at. It belongs to the polling thread."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._looked_at: int | None = None
        self._must_read = False

    def were_read(self, description: CheckpointDescription) -> None:
        """Note that schemas are known as of the last commit of `description`."""
        last = description.last_commit
        self._looked_at = None if last is None else last.batch_id
        self._must_read = False

    def to_read(self, description: CheckpointDescription, batch_id: int) -> bool:
        """Whether there may be other schemas than those of `description` since the last call, and once more at each
        commit until they were read.
        """
        if self._looked_at is None or batch_id <= self._looked_at:
            return False
        batches, self._looked_at = range(self._looked_at + 1, batch_id + 1), batch_id
        paths = metadata_paths(description, batches)
        if not self._must_read and paths:
            self._must_read = len(paths) > MAX_STATS or any(self._files.stats(paths))
        return self._must_read


def metadata_paths(description: CheckpointDescription, batches: range) -> list[str]:
    """List the metadata of operators whose state may change, if one of these batches is the first of a run."""
    operators = [each.operator_id for each in description.operators if each.operator_name in TRANSFORM]
    numbered = [f"state/{operator_id}/_metadata/v2/{batch}" for operator_id in operators for batch in batches]
    return numbered + [
        f"state/{each.operator_id}/_metadata/metadata" for each in description.operators if each.inferred_from
    ]
