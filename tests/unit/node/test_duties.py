"""What a node is to hold: everything, or what an assignment for the same layout gives it."""

from __future__ import annotations

from understudy_node.generations import EVERYTHING, Duties
from understudy_shared.base.words import Role


def test_alone_a_node_is_active_for_every_task_of_every_layout() -> None:
    assert EVERYTHING.are_about(3)
    assert EVERYTHING.role_of("0_2") is Role.ACTIVE


def test_assigned_it_holds_what_it_is_given_and_nothing_else() -> None:
    duties = Duties({"0_1": Role.STANDBY})
    assert duties.role_of("0_1") is Role.STANDBY
    assert duties.role_of("0_0") is None
    assert duties.are_about(8)


def test_duties_for_another_number_of_partitions_say_nothing() -> None:
    assert not Duties({}, 4).are_about(8)
    assert Duties({}, 4).are_about(4)
