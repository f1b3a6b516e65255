"""The questions of a router about versions: the leases that nodes hold, and the version that was newest at a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import orjson
import pytest
from tests.support.clock import ManualClock
from tests.support.router.tables import APPLICATION, LINEAGE, beat, port_of, tables_of, task

from understudy_router.admin.overview import MAX_SHOWN, overview_part
from understudy_router.questions.moments import Moments, SnapshotLeases, listing_document
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage
from understudy_shared.cluster.node_calls import CallKind, NodeCallError, NodeCalls, NodeTimeoutError
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.lease.calls import (
    HOLD_PATH,
    LIST_PATH,
    RELEASE_PATH,
    SHOWN_PATH,
    ReplicaVersion,
    decode_leases_call,
    encode_shown,
)
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.tokens import Position, SnapshotLease

Said = tuple[int, bytes] | Exception
AT = Position(ApplicationId(APPLICATION), Lineage(LINEAGE), 7, 3)
HELD: Said = (200, b"{}")
GONE = NodeTimeoutError("it does not answer")
FULL = 429, orjson.dumps({"type": "overloaded", "detail": "no room", "fix": "Retry later", "retry_after_s": 9})


class Nodes:
    """Nodes that say what a test has them say, by path."""

    def __init__(self, **said: Mapping[str, Said]) -> None:
        self.said = {port_of(name): each for name, each in said.items()}
        self.asked: list[tuple[int, str, bytes]] = []

    async def ask(
        self, kind: CallKind, host: HostInfo, path: str, content: bytes, *, max_bytes: int, limit_s: float
    ) -> tuple[int, bytes]:
        assert kind is CallKind.LEASE
        self.asked.append((host.port, path, content))
        said = self.said[host.port][path]
        if isinstance(said, Exception):
            raise said
        return said

    def paths(self) -> list[str]:
        return sorted(path for _, path, _ in self.asked)


def leases_of(nodes: Nodes, clock: ManualClock | None = None) -> SnapshotLeases:
    tables = tables_of(task("a", "b"), beat("a", version=9), beat("b", version=8))
    return SnapshotLeases(APPLICATION, tables, cast(NodeCalls, nodes), clock=clock or ManualClock())


def lease(lease_id: str = "x") -> SnapshotLease:
    return SnapshotLease(AT, lease_id, 60)


def shows(version: int) -> Said:
    return 200, encode_shown((ReplicaVersion("op0", 0, version, 3), ReplicaVersion("op0", 1, 8, 3)))


async def test_each_task_counts_at_its_newest_replica() -> None:
    nodes = Nodes(a={SHOWN_PATH: shows(9)}, b={SHOWN_PATH: shows(7)})
    shown = await leases_of(nodes).shown(LINEAGE, ["op0"], None)
    assert sorted((each.partition, each.version) for each in shown) == [(0, 9), (1, 8)]
    gone = Nodes(a={SHOWN_PATH: GONE}, b={SHOWN_PATH: shows(7)})
    assert {each.version for each in await leases_of(gone).shown(LINEAGE, ["op0"], None)} == {7, 8}


async def test_a_lease_is_held_by_the_nodes_that_answer_and_refused_where_none_does() -> None:
    half = Nodes(a={HOLD_PATH: HELD}, b={HOLD_PATH: GONE})
    await leases_of(half).hold(lease(), ["op0"])
    call = decode_leases_call(half.asked[0][2])
    assert (call.leases, call.stores, call.is_renewal) == ((lease(),), ("op0",), False)
    older = Nodes(a={HOLD_PATH: (404, b"{}")}, b={HOLD_PATH: GONE})
    with pytest.raises(ProblemError) as refused:
        await leases_of(older).hold(lease(), ["op0"])
    assert refused.value.problem.status == 503


async def test_a_node_without_room_refuses_for_all_and_the_lease_ends_at_the_others() -> None:
    nodes = Nodes(a={HOLD_PATH: HELD, RELEASE_PATH: (200, b"{}")}, b={HOLD_PATH: FULL, RELEASE_PATH: (200, b"{}")})
    with pytest.raises(ProblemError) as refused:
        await leases_of(nodes).hold(lease(), ["op0"])
    problem = refused.value.problem
    assert (problem.status, problem.detail, problem.retry_after_s) == (429, "no room", 9)
    assert nodes.paths() == sorted([HOLD_PATH, RELEASE_PATH] * 2)


async def test_leases_that_are_used_are_renewed_together_and_each_once_in_a_third_of_its_time() -> None:
    clock = ManualClock()
    nodes = Nodes(a={HOLD_PATH: HELD}, b={HOLD_PATH: GONE})
    leases = leases_of(nodes, clock)
    for _ in range(3):
        leases.used(lease("x"))
        leases.used(lease("y"))
    await leases.renew_used()
    await leases.renew_used()
    assert len(nodes.asked) == 2, "one call to each node"
    call = decode_leases_call(nodes.asked[0][2])
    assert ([each.lease_id for each in call.leases], call.is_renewal) == (["x", "y"], True)
    clock.advance(19_000)
    leases.used(lease("x"))
    await leases.renew_used()
    assert len(nodes.asked) == 2
    clock.advance(1_001)
    leases.used(lease("x"))
    await leases.renew_used()
    assert len(nodes.asked) == 4


def entry(lease_id: str, **members: object) -> dict[str, object]:
    return {
        "id": lease_id, "version": 7, "committed_at": None, "lineage": LINEAGE, "ttl_s": 60,
        "expires_at": "2026-11-26T00:00:05Z", "tasks": 2, "extra_bytes": 10, "disk_bytes": 20, **members,
    }  # fmt: skip


async def test_a_listing_sums_up_what_nodes_hold_and_names_those_that_did_not_answer() -> None:
    renewed = entry("x", expires_at="2026-11-26T00:00:09Z")
    said = {name: {LIST_PATH: (200, orjson.dumps({"snapshots": each}))} for name, each in
            (("a", [entry("x"), entry("y")]), ("b", [renewed]))}  # fmt: skip
    document = listing_document(await leases_of(Nodes(**said)).listed())
    assert [each["id"] for each in document["snapshots"]] == ["y", "x"], "the one that ends first"
    x = document["snapshots"][1]
    assert (x["nodes"], x["tasks"], x["extra_bytes"], x["disk_bytes"]) == (2, 4, 20, 40)
    assert x["expires_at"] == "2026-11-26T00:00:09Z"
    assert document["unanswered"] == []
    for silent in (NodeCallError("gone"), (200, b'{"snapshots": [{"id": 3}]}'), (500, b"{}")):
        partly = Nodes(a=said["a"], b={LIST_PATH: cast(Said, silent)})
        document = listing_document(await leases_of(partly).listed())
        assert (len(document["snapshots"]), document["unanswered"]) == (2, ["b"])


def test_an_overview_has_some_leases_and_the_number_of_all() -> None:
    part = overview_part([entry(str(number)) for number in range(MAX_SHOWN + 5)])
    assert (part["held"], len(part["leases"])) == (MAX_SHOWN + 5, MAX_SHOWN)


MOMENT = Bound(at_us=5)
MomentSaid = tuple[int, dict[str, object]] | Exception | None
"""The reply of a node; None: it never answers."""


class MomentNodes:
    """MomentNodes that say what a test has them say."""

    def __init__(self, said: dict[str, MomentSaid]) -> None:
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


def moments(nodes: MomentNodes, *, deadline_ms: int = 10_000, **first: Any) -> Moments:
    """The first node is the furthest, so it is asked first. `first`: what else its heartbeat says."""
    tables = tables_of(task("a", "b"), beat("a", version=9, **first), beat("b", version=8))
    calls = cast(NodeCalls, nodes)
    leases = SnapshotLeases(APPLICATION, tables, calls, clock=SystemClock())
    return Moments(tables, calls, leases, deadline_ms=deadline_ms)


def position(version: int, lineage: str = LINEAGE) -> Position:
    return Position(ApplicationId(APPLICATION), Lineage(lineage), version, 3)


def says(found: Position) -> MomentSaid:
    return 200, {"position": found.encode()}


async def test_the_node_that_is_the_furthest_is_asked_and_no_other() -> None:
    nodes = MomentNodes({"a": says(position(7)), "b": says(position(6))})
    assert (await moments(nodes).resolved(MOMENT)).snapshot == position(7)
    assert nodes.asked == [port_of("a")]
    assert await moments(nodes).resolved(Bound(version=3)) == Bound(version=3)


@pytest.mark.parametrize(
    "first",
    [NodeCallError("down"), (200, {"position": "rubbish"}), (503, {"detail": "not ready"}), says(position(7, "old"))],
)
async def test_another_node_is_asked_when_one_fails_lies_or_follows_another_history(first: MomentSaid) -> None:
    nodes = MomentNodes({"a": first, "b": says(position(6))})
    assert (await moments(nodes).resolved(MOMENT)).snapshot == position(6)


async def test_a_moment_before_all_versions_is_gone_and_a_silent_node_ends_at_the_deadline() -> None:
    gone = MomentNodes({"a": (410, {"type": "version-gone", "detail": "gone", "retained_versions": [3, 9]}), "b": None})
    with pytest.raises(ProblemError) as refused:
        await moments(gone).resolved(MOMENT)
    assert (refused.value.problem.status, refused.value.problem.extra) == (410, {"retained_versions": [3, 9]})
    with pytest.raises(ProblemError) as late:
        await moments(MomentNodes({"a": None, "b": None}), deadline_ms=1).resolved(MOMENT)
    assert late.value.problem.status == 504


async def test_a_node_that_lookups_do_not_reach_or_that_leaves_is_asked_after_the_others() -> None:
    nodes = MomentNodes({"a": says(position(7)), "b": says(position(6))})
    suspect = moments(nodes)
    suspect._tables.hop_failed("a", 0, "timeout")
    for each in (suspect, moments(nodes, state="draining")):
        assert (await each.resolved(MOMENT)).snapshot == position(6)
    assert nodes.asked == [port_of("b")] * 2


async def test_a_crowd_passes_by_a_node_that_never_answers_and_later_reads_do_not_ask_it() -> None:
    nodes = MomentNodes({"a": None, "b": says(position(6))})
    found = moments(nodes, deadline_ms=1000)
    crowd = await asyncio.gather(*(found.resolved(MOMENT) for _ in range(100)))
    assert {bound.snapshot for bound in crowd} == {position(6)}
    nodes.asked.clear()
    assert (await found.resolved(MOMENT)).snapshot == position(6)
    assert nodes.asked == [port_of("b")]


async def test_one_read_at_a_time_tries_a_node_again_and_its_answer_makes_it_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = MomentNodes({"a": NodeCallError("down"), "b": says(position(6))})
    found = moments(nodes, deadline_ms=1000)
    with monkeypatch.context() as patch:
        patch.setattr("understudy_router.questions.moments.AVOIDED_S", 0.0)
        await found.resolved(MOMENT)
    nodes.asked.clear()
    nodes.said[port_of("a")] = None
    await asyncio.gather(*(found.resolved(MOMENT) for _ in range(3)))
    assert nodes.asked.count(port_of("a")) == 1
    nodes.said[port_of("a")] = says(position(7))
    found._avoided["a"] = 0.0
    assert [(await found.resolved(MOMENT)).snapshot for _ in range(2)] == [position(7)] * 2
    assert not found._avoided
