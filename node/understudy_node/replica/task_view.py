"""One committed version of a task as readers see it, and the identity of the replica that shows it.

A `TaskView` is immutable, swapped by one assignment, and keeps its version readable for as long as it is referenced.
Value, version, commit time and watermark come from the same object, so they cannot disagree.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import orjson

from understudy_node.engine.view import StateView
from understudy_node.follow.history import CommitRecord
from understudy_shared.base.words import HostInfo, LagInfo, Lineage, ReplicaState, Role, TaskId
from understudy_shared.http.problems import LAYOUT_SINCE, RETAINED, Problem, refused
from understudy_shared.reads.bounds import Refusal
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.temporal import utc_text


class RetainedVersions(NamedTuple):
    """The versions that can be read. `is_layout`: the checkpoint retains older ones in another layout."""

    first: int
    last: int
    is_layout: bool = False


class Origin:
    """The identity of a replica, and its JSON. A worker and a change of role may change it at once."""

    def __init__(self, host: HostInfo, node_id: str | None, role: Role) -> None:
        """Start as CREATED. `node_id` is None outside a cluster."""
        self.role = role
        self.state = ReplicaState.CREATED
        self.json = b""
        self._host = host
        self._node_id = node_id
        self._lock = threading.Lock()
        self._encode()

    def enter(self, state: ReplicaState) -> None:
        self.state = state
        self._encode()

    def set_role(self, role: Role) -> None:
        """Change the role. Called from any thread."""
        if role is not self.role:
            self.role = role
            self._encode()

    def as_gone(self, retained: RetainedVersions | None) -> Problem:
        """Return the problem of a version that is gone. Its candidate says what can be read: routers pass it on."""
        candidate = self.as_candidate(None, Refusal.VERSION_GONE)
        if retained is not None:
            candidate |= {RETAINED: (retained.first, retained.last)}
            candidate |= {LAYOUT_SINCE: retained.first} if retained.is_layout else {}
        return refused(Refusal.VERSION_GONE, candidates=[candidate])

    def as_candidate(self, lag: LagInfo | None, reason: str) -> dict[str, object]:
        """Return the replica as listed in a refusal: its identity, its version and lag, and why it may not answer."""
        candidate: dict[str, object] = {**orjson.loads(self.json), "reason": str(reason)}
        if lag is not None:
            candidate |= {"version": lag.current_offset_position, "offset_lag": lag.offset_lag}
            candidate["time_lag_ms"] = lag.time_lag_ms
        return candidate

    def _encode(self) -> None:
        with self._lock:
            host = self._host
            fields: dict[str, object] = {"host": host.host, "port": host.port, "role": self.role, "state": self.state}
            if self._node_id is not None:
                fields["node_id"] = self._node_id
            self.json = orjson.dumps(fields)


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
    stores: Mapping[str, StateView]
    committed_at_us: int | None
    watermark_ms: int | None
    next_watermark_ms: int | None
    marks: frozenset[Mark]
    stamp: bytes
    seal: bytes


def task_view(
    task: TaskId,
    lineage: Lineage,
    *,
    version: int,
    stores: Mapping[str, StateView],
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
