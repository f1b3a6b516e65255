"""What a node says of itself on its page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from understudy_node.http.page import HeldPartition, counts_of
from understudy_shared.base.words import LagInfo, ReplicaState


def held(lag: LagInfo | None, *, restoring: bool = False) -> HeldPartition:
    state = ReplicaState.RESTORING if restoring else ReplicaState.RUNNING
    replica: Any = SimpleNamespace(restoring=restoring, state=state)
    reader: Any = None
    return HeldPartition(reader, 0, replica, lag)


def test_a_replica_that_restores_and_answers_meanwhile_hides_no_lag_that_is_unknown() -> None:
    known = LagInfo(4, 5, 1, 0)
    counts = counts_of([held(known, restoring=True), held(None), held(None, restoring=True), held(known)])
    assert (counts["replicas"], counts["restoring"], counts["running"], counts["unknown"]) == (4, 2, 2, 1)
