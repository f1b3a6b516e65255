"""Which nodes are alive, which of two checkpoints an application follows, and what impossible heartbeats do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import assignment, heartbeat

from understudy_node.cluster.context import Neighbours, outvoted
from understudy_shared.base.plausible import FIRST_SIGHT
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, Heartbeat, NodeEndpoint
from understudy_shared.cluster.view import limit_beside

HEARTBEAT_MS = 1000


def neighbour(node_id: str = "a", *, lineage: str | None = "L", **fields: Any) -> Heartbeat:
    nothing: dict[str, Any] = {"end_version": 0, "end_age_ms": None, "applied": Applied(version=None), "epoch": 0}
    fields = {
        "incarnation": "1",
        "sequence": 0,
        "term": 0,
        "checkpoint": f"/checkpoints/{lineage}",
        **nothing,
        **fields,
    }
    return heartbeat(node_id, lineage=lineage, heartbeat_ms=HEARTBEAT_MS, **fields)


def ids(neighbours: Neighbours, now_ms: float) -> list[str]:
    return [seen.heartbeat.node_id for seen in neighbours.alive(now_ms)]


@given(st.permutations(range(6)))
def test_in_whatever_order_heartbeats_arrive_the_newest_stands(order: list[int]) -> None:
    neighbours = Neighbours("own")
    for sequence in order:
        neighbours.heard(neighbour(sequence=sequence, term=sequence), age_ms=0, now_ms=0)
    assert neighbours.highest() == (5, 0)


def test_a_lone_node_on_another_checkpoint_is_outvoted_and_learns_which_is_which() -> None:
    own = neighbour("a", lineage="wrong")
    nodes = [AgedHeartbeat(own, 0), AgedHeartbeat(neighbour("b"), 0), AgedHeartbeat(neighbour("c"), 0)]
    why = outvoted(own, nodes)
    assert why is not None
    assert "/checkpoints/wrong" in why
    assert "/checkpoints/L" in why
    assert outvoted(neighbour("b"), nodes) is None


@given(st.lists(st.sampled_from(["L", "M", None]), min_size=1, max_size=7))
def test_at_most_one_checkpoint_has_nodes_that_may_speak_for_the_application(lineages: list[str | None]) -> None:
    nodes = [AgedHeartbeat(neighbour(f"n{number}", lineage=lineage), 0) for number, lineage in enumerate(lineages)]
    speaking = {seen.heartbeat.lineage for seen in nodes if outvoted(seen.heartbeat, nodes) is None} - {None}
    assert len(speaking) == (1 if set(lineages) - {None} else 0)


def knowing(*members: str) -> Neighbours:
    """A node whose assignment has these others."""
    neighbours = Neighbours("own")
    places = {node_id: NodeEndpoint(host="127.0.0.1", port=port) for port, node_id in enumerate(("own", *members), 1)}
    neighbours.follow(assignment(term=1, epoch=1).model_copy(update={"members": places}))
    return neighbours


def test_a_silent_member_may_live_until_it_was_asked_in_vain() -> None:
    neighbours = knowing("a", "b")
    neighbours.heard(neighbour("a"), age_ms=0, now_ms=0)
    assert neighbours.unasked(0) == ["b"], "the assignment names it, and nobody knows how it is"
    now_ms = 3 * HEARTBEAT_MS + 1
    assert neighbours.unasked(now_ms) == ["a", "b"]
    assert neighbours.to_ask(now_ms, heartbeat_ms=HEARTBEAT_MS, but="own").keys() == {"a", "b"}
    assert neighbours.did_not_answer("a", now_ms)
    assert not neighbours.did_not_answer("a", now_ms), "that is known"
    assert neighbours.unasked(now_ms) == ["b"]
    neighbours.heard(neighbour("b"), age_ms=0, now_ms=now_ms + 2)
    assert not neighbours.did_not_answer("b", now_ms + 1), "it has spoken since"
    assert ids(neighbours, now_ms + 2) == ["b"]


def following(term: int = 5, epoch: int = 7) -> Neighbours:
    """Neighbours of a node that follows an assignment with n1, and lineage l1 up to version 7."""
    neighbours = Neighbours("n1", history=lambda: ("l1", 7))
    assert neighbours.follow(assignment(term=term, epoch=epoch))
    return neighbours


def test_a_node_that_follows_a_forged_assignment_sees_that_all_others_are_far_behind() -> None:
    neighbours = following(FIRST_SIGHT, FIRST_SIGHT)
    assert not neighbours.is_far_ahead()
    neighbours.heard(heartbeat("n1", term=FIRST_SIGHT, epoch=FIRST_SIGHT), age_ms=0, now_ms=0)
    neighbours.heard(heartbeat("n2", term=5, epoch=7), age_ms=0, now_ms=0)
    assert neighbours.is_far_ahead()
    assert not following().is_far_ahead()


def test_strangers_have_bounded_room_and_are_given_nothing_before_they_beat() -> None:
    neighbours = following()
    for number in range(limit_beside(1) + 10):
        neighbours.heard(heartbeat(f"forged-{number}"), age_ms=0, now_ms=0)
    neighbours.heard(heartbeat("n1"), age_ms=0, now_ms=0)
    neighbours.heard(heartbeat("forged-1", sequence=2), age_ms=0, now_ms=1)
    alive = neighbours.alive(2)
    assert len(alive) == limit_beside(1) + 1
    assert {each.heartbeat.node_id for each in neighbours.proven(alive)} == {"n1", "forged-1"}
