"""A router asks nodes which version was the newest at a moment: one that answers in time, of the history in use."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.support.router.tables import APPLICATION, LINEAGE, beat, port_of, tables_of, task

from understudy_router.questions.moments import Moments, SnapshotLeases
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage
from understudy_shared.cluster.node_calls import NodeCallError, NodeCalls
from understudy_shared.http.problems import ProblemError
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.tokens import Position

AT = Bound(at_us=5)
Said = tuple[int, dict[str, object]] | Exception | None
"""The reply of a node; None: it never answers."""


class Nodes:
    """Nodes that say what a test has them say."""

    def __init__(self, said: dict[str, Said]) -> None:
        self.said = {port_of(name): each for name, each in said.items()}
        self.asked: list[int] = []

    async def position_at(self, host: HostInfo, at_us: int) -> tuple[int, dict[str, object]]:
        self.asked.append(host.port)
        said = self.said[host.port]
        if said is None:
            await asyncio.Event().wait()
        if isinstance(said, Exception):
            raise said
        assert said is not None
        return said


def moments(nodes: Nodes, *, deadline_ms: int = 10_000) -> Moments:
    """The first node is the furthest, so it is asked first."""
    tables = tables_of(task("a", "b"), beat("a", version=9), beat("b", version=8))
    calls = cast(NodeCalls, nodes)
    leases = SnapshotLeases(APPLICATION, tables, calls, clock=SystemClock())
    return Moments(tables, calls, leases, deadline_ms=deadline_ms)


def position(version: int, lineage: str = LINEAGE) -> Position:
    return Position(ApplicationId(APPLICATION), Lineage(lineage), version, 3)


def says(found: Position) -> Said:
    return 200, {"position": found.encode()}


async def test_the_node_that_is_the_furthest_is_asked_and_no_other() -> None:
    nodes = Nodes({"a": says(position(7)), "b": says(position(6))})
    assert (await moments(nodes).resolved(AT)).snapshot == position(7)
    assert nodes.asked == [port_of("a")]
    assert await moments(nodes).resolved(Bound(version=3)) == Bound(version=3)


@pytest.mark.parametrize(
    "first",
    [NodeCallError("down"), (200, {"position": "rubbish"}), (503, {"detail": "not ready"}), says(position(7, "old"))],
)
async def test_another_node_is_asked_when_one_fails_lies_or_follows_another_history(first: Said) -> None:
    nodes = Nodes({"a": first, "b": says(position(6))})
    assert (await moments(nodes).resolved(AT)).snapshot == position(6)


async def test_a_moment_before_all_versions_is_gone_and_a_silent_node_ends_at_the_deadline() -> None:
    gone = Nodes({"a": (410, {"type": "version-gone", "detail": "gone", "retained_versions": [3, 9]}), "b": None})
    with pytest.raises(ProblemError) as refused:
        await moments(gone).resolved(AT)
    assert (refused.value.problem.status, refused.value.problem.extra) == (410, {"retained_versions": [3, 9]})
    with pytest.raises(ProblemError) as late:
        await moments(Nodes({"a": None, "b": None}), deadline_ms=1).resolved(AT)
    assert late.value.problem.status == 504
