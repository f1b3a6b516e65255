"""What a node is to hold: what an assignment for the same layout gives it."""

from __future__ import annotations

from understudy_node.generations import Duties


def test_duties_for_another_number_of_partitions_say_nothing() -> None:
    assert not Duties({}, 4).are_about(8)
    assert Duties({}, 4).are_about(4)
