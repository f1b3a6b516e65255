"""One committed version of a task, as readers see it: immutable, swapped by one assignment.

A `TaskView` keeps its version readable for as long as it is referenced; value, version, commit time and watermark come
from the same object, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import orjson

from understudy_node.engine.view import View
from understudy_node.follow.history import CommitRecord
from understudy_shared.base.words import Lineage, TaskId
from understudy_shared.reads.bounds import ReadVersion
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.times import utc_text


class Mark(StrEnum):
    """An anomaly of format v1 that was observed (health and answers carry it)."""

    UNVERIFIABLE_V1 = "unverifiable-v1"
    """A committed version's file was rewritten after the commit: another attempt's content may be in it."""
    STALE_SNAPSHOT = "stale-snapshot"
    """A snapshot older than the delta of its version: it holds a dead attempt, and Spark itself may load it."""


@dataclass(frozen=True, slots=True)
class TaskView:
    """All stores of a task at `version`. Times are None when Spark already purged the version's commit file.

    `next_watermark_ms` is the watermark that the version left to the next batch.

    `stamp` and `seal` are the parts of every answer's JSON that are the same for the whole version.
    """

    version: int
    stores: Mapping[str, View]
    committed_at_us: int | None
    watermark_ms: int | None
    next_watermark_ms: int | None
    marks: frozenset[Mark]
    stamp: bytes
    seal: bytes

    def is_of(self, wanted: ReadVersion) -> bool:
        """Whether this is the version that is wanted, of the commit that is wanted."""
        return wanted.is_of(self.version, self.committed_at_us)


def task_view(
    task: TaskId,
    lineage: Lineage,
    *,
    version: int,
    stores: Mapping[str, View],
    record: CommitRecord | None,
    marks: frozenset[Mark],
) -> TaskView:
    """Make the view of `version`; `record` is its commit, None when that was purged."""
    committed_at_us = None if record is None else record.committed_at_us
    # Spark starts the watermark at 0 and keeps it there for queries without one.
    watermark_ms = None if record is None or record.offsets.watermark_ms <= 0 else record.offsets.watermark_ms
    stamp = {
        "partition": task.partition,
        "version": version,
        "committed_at": utc_text(committed_at_us),
        "watermark": utc_text(None if watermark_ms is None else watermark_ms * 1000),
    }
    seal: dict[str, object] = {"marks": sorted(marks)} if marks else {}
    seal["position"] = Position(task.application_id, lineage, version, committed_at_us).encode()
    return TaskView(
        version=version,
        stores=stores,
        committed_at_us=committed_at_us,
        watermark_ms=watermark_ms,
        next_watermark_ms=None if record is None else record.commit.next_watermark_ms,
        marks=marks,
        stamp=orjson.dumps(stamp)[1:-1],
        seal=orjson.dumps(seal)[1:-1],
    )
