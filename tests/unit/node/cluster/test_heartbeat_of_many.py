"""A heartbeat of many replicas says of each how far it is, and costs by how many kinds there are of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.simulated import SimulatedNode
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.files import FileStat
from understudy_node.follow.end import End
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import LagInfo, ReplicaState
from understudy_shared.bus.messages import Applied, Heartbeat, Restore

END = 9
NOW_MS = 1005.0
FILE = FileStat(mtime_ns=1, size=1, inode=1)

RESTORES = st.none() | st.builds(Restore, stage=st.just("files"), done_bytes=st.integers(0, 2))
STATUSES = st.fixed_dictionaries(
    {
        "version": st.none() | st.integers(END - 3, END),
        "state": st.sampled_from(ReplicaState),
        "error": st.none() | st.sampled_from(["disk full", "x" * 600]),
        "restore": RESTORES,
    }
)


class Measured:
    """Lags as of a real node's `Progress`; counts how often one is computed."""

    def __init__(self) -> None:
        self.asked = 0

    def lag_at(self, version: int, end: End, *, now_ms: float) -> LagInfo:
        self.asked += 1
        behind = end.version - version
        return LagInfo(version, end.version, behind, behind * 100 + round(now_ms))


def heartbeat_of_all(statuses: list[dict[str, Any]], progress: Measured) -> Heartbeat:
    """What a node says whose replicas are so. Each error is an object of its own, as replicas have them."""
    node = SimulatedNode(0, port=1, tasks=len(statuses))
    node.end = End(END, FILE, FILE, confirmed_ms=NOW_MS)
    node.generation.replicas = tuple(
        SimpleNamespace(
            key=f"0_{number}",
            view=None if status["version"] is None else SimpleNamespace(version=status["version"]),
            state=status["state"],
            error=None if status["error"] is None else UnderstudyError(status["error"]),
            restore=status["restore"],
            progress=progress,
        )
        for number, status in enumerate(statuses)
    )
    return node.heartbeat(sequence=1, order=(1, 1), catalogue="c1", now_ms=NOW_MS)


def said_of(status: dict[str, Any]) -> Applied:
    """One replica by itself."""
    version = status["version"]
    return Applied(
        version=version,
        time_lag_ms=None if version is None else (END - version) * 100 + round(NOW_MS),
        state=status["state"].value,
        error=None if status["error"] is None else status["error"][:500],
        restore=status["restore"],
    )


@given(st.lists(STATUSES, max_size=12))
def test_whatever_its_replicas_are_a_heartbeat_says_of_each_how_far_it_is(statuses: list[dict[str, Any]]) -> None:
    beat = heartbeat_of_all(statuses, Measured())
    expected = {f"0_{number}": said_of(status) for number, status in enumerate(statuses)}
    assert {task: beat.exceptions.get(task, beat.applied) for task in expected} == expected
    in_step = len(expected) - len(beat.exceptions)
    assert in_step == max((list(expected.values()).count(one) for one in expected.values()), default=0)
    assert beat.held == (sorted(expected) or None)


def test_of_a_thousand_tasks_in_step_one_lag_is_computed() -> None:
    progress = Measured()
    in_step: dict[str, Any] = {"version": END, "state": ReplicaState.RUNNING, "error": None, "restore": None}
    beat = heartbeat_of_all([in_step] * 1000 + [{**in_step, "version": END - 1}], progress)
    assert list(beat.exceptions) == ["0_1000"]
    assert progress.asked == 2
