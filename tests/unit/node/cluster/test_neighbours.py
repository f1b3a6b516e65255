"""Which nodes are alive, by what arrived here and when; and which of two checkpoints an application follows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import assignment

from understudy_node.cluster.context import Neighbours, outvoted
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, Endpoint, Heartbeat

HEARTBEAT_MS = 1000


def heartbeat(
    node_id: str = "a", *, incarnation: str = "1", sequence: int = 0, lineage: str | None = "L", term: int = 0
) -> Heartbeat:
    return Heartbeat(
        application_id="flights",
        node_id=node_id,
        incarnation=incarnation,
        sequence=sequence,
        endpoint=Endpoint(host="127.0.0.1", port=7101),
        state="serving",
        heartbeat_ms=HEARTBEAT_MS,
        lineage=lineage,
        end_version=0,
        end_age_ms=None,
        applied=Applied(version=None),
        term=term,
        epoch=0,
        checkpoint=f"/checkpoints/{lineage}",
    )


def ids(neighbours: Neighbours, now_ms: float) -> list[str]:
    return [seen.heartbeat.node_id for seen in neighbours.alive(now_ms)]


def test_a_node_lives_for_three_heartbeats_after_its_last() -> None:
    neighbours = Neighbours("own")
    neighbours.heard(heartbeat(), age_ms=0, now_ms=100)
    assert ids(neighbours, 100 + 3 * HEARTBEAT_MS) == ["a"]
    assert ids(neighbours, 101 + 3 * HEARTBEAT_MS) == []


@given(st.permutations(range(6)))
def test_in_whatever_order_heartbeats_arrive_the_newest_stands(order: list[int]) -> None:
    neighbours = Neighbours("own")
    for sequence in order:
        neighbours.heard(heartbeat(sequence=sequence, term=sequence), age_ms=0, now_ms=0)
    assert neighbours.highest() == (5, 0)


def test_a_lone_node_on_another_checkpoint_is_outvoted_and_learns_which_is_which() -> None:
    own = heartbeat("a", lineage="wrong")
    nodes = [AgedHeartbeat(own, 0), AgedHeartbeat(heartbeat("b"), 0), AgedHeartbeat(heartbeat("c"), 0)]
    why = outvoted(own, nodes)
    assert why is not None
    assert "/checkpoints/wrong" in why
    assert "/checkpoints/L" in why
    assert outvoted(heartbeat("b"), nodes) is None


@given(st.lists(st.sampled_from(["L", "M", None]), min_size=1, max_size=7))
def test_at_most_one_checkpoint_has_nodes_that_may_speak_for_the_application(lineages: list[str | None]) -> None:
    nodes = [AgedHeartbeat(heartbeat(f"n{number}", lineage=lineage), 0) for number, lineage in enumerate(lineages)]
    speaking = {seen.heartbeat.lineage for seen in nodes if outvoted(seen.heartbeat, nodes) is None} - {None}
    assert len(speaking) == (1 if set(lineages) - {None} else 0)


def knowing(*members: str) -> Neighbours:
    """A node whose assignment has these others."""
    neighbours = Neighbours("own")
    places = {node_id: Endpoint(host="127.0.0.1", port=port) for port, node_id in enumerate(("own", *members), 1)}
    neighbours.follow(assignment(term=1, epoch=1).model_copy(update={"members": places}))
    return neighbours


def test_a_silent_member_may_live_until_it_was_asked_in_vain() -> None:
    neighbours = knowing("a", "b")
    neighbours.heard(heartbeat("a"), age_ms=0, now_ms=0)
    assert neighbours.unasked(0) == ["b"], "the assignment names it, and nobody knows how it is"
    now_ms = 3 * HEARTBEAT_MS + 1
    assert neighbours.unasked(now_ms) == ["a", "b"]
    assert neighbours.to_ask(now_ms, heartbeat_ms=HEARTBEAT_MS, but="own").keys() == {"a", "b"}
    assert neighbours.did_not_answer("a", now_ms)
    assert not neighbours.did_not_answer("a", now_ms), "that is known"
    assert neighbours.unasked(now_ms) == ["b"]
    neighbours.heard(heartbeat("b"), age_ms=0, now_ms=now_ms + 2)
    assert not neighbours.did_not_answer("b", now_ms + 1), "it has spoken since"
    assert ids(neighbours, now_ms + 2) == ["b"]
