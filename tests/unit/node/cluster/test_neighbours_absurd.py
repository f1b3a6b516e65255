"""How a node treats impossible heartbeats, and heartbeats of nodes that do not exist."""

from __future__ import annotations

from tests.support.bus.documents import assignment, heartbeat

from understudy_node.cluster.context import Neighbours
from understudy_shared.base.plausible import FIRST_SIGHT
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.cluster.view import limit_beside


def knowing(term: int = 5, epoch: int = 7) -> Neighbours:
    """Neighbours of a node that follows an assignment with n1, and lineage l1 up to version 7."""
    neighbours = Neighbours("n1", history=lambda: ("l1", 7))
    assert neighbours.follow(assignment(term=term, epoch=epoch))
    return neighbours


def ids(seen: list[AgedHeartbeat]) -> set[str]:
    return {each.heartbeat.node_id for each in seen}


def test_an_order_that_cannot_be_is_not_the_highest_and_its_node_lives() -> None:
    neighbours = knowing()
    neighbours.heard(heartbeat("n1", term=5, epoch=6), age_ms=0, now_ms=0)
    neighbours.heard(heartbeat("n2", term=FIRST_SIGHT, epoch=1, end_version=FIRST_SIGHT), age_ms=0, now_ms=0)
    assert neighbours.highest() == (5, 6)
    assert ids(neighbours.alive(1)) == {"n1", "n2"}
    assert max(each.heartbeat.end_version for each in neighbours.alive(1)) == 7


def test_a_node_that_follows_a_forged_assignment_sees_that_all_others_are_far_behind() -> None:
    neighbours = knowing(FIRST_SIGHT, FIRST_SIGHT)
    assert not neighbours.is_far_ahead()
    neighbours.heard(heartbeat("n1", term=FIRST_SIGHT, epoch=FIRST_SIGHT), age_ms=0, now_ms=0)
    neighbours.heard(heartbeat("n2", term=5, epoch=7), age_ms=0, now_ms=0)
    assert neighbours.is_far_ahead()
    assert not knowing().is_far_ahead()


def test_strangers_have_bounded_room_and_are_given_nothing_before_they_beat() -> None:
    neighbours = knowing()
    for number in range(limit_beside(1) + 10):
        neighbours.heard(heartbeat(f"forged-{number}"), age_ms=0, now_ms=0)
    neighbours.heard(heartbeat("n1"), age_ms=0, now_ms=0)
    neighbours.heard(heartbeat("forged-1", sequence=2), age_ms=0, now_ms=1)
    alive = neighbours.alive(2)
    assert len(alive) == limit_beside(1) + 1
    assert ids(neighbours.proven(alive)) == {"n1", "forged-1"}
