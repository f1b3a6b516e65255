"""The assignor case by case: who gets what, and when."""

from __future__ import annotations

from collections import Counter

import pytest

from understudy_node.cluster.assignor import Member, Replica, assign, duties_of
from understudy_shared.base.words import Role
from understudy_shared.bus.messages import AssignedTask

A, B, C, D = (Member(node_id) for node_id in "abcd")
TASKS = [f"0_{partition}" for partition in range(4)]


def ready(*node_ids: str, version: int = 9) -> list[Replica]:
    return [Replica(node_id, True, version) for node_id in node_ids]


def behind(*node_ids: str, version: int | None = 1) -> list[Replica]:
    return [Replica(node_id, False, version) for node_id in node_ids]


def one(
    members: list[Member], before: AssignedTask, replicas: list[Replica], *, standbys: int = 1, warmups: int = 2
) -> AssignedTask:
    """The next assignment of a single task."""
    found = assign(
        members, ["0_0"], {"0_0": before}, {"0_0": replicas}, num_standby_replicas=standbys, max_warmup_replicas=warmups
    )
    return found["0_0"]


def several(
    members: list[Member],
    before: dict[str, AssignedTask],
    held: dict[str, list[Replica]],
    *,
    standbys: int = 1,
    warmups: int = 2,
) -> dict[str, AssignedTask]:
    return assign(members, TASKS, before, held, num_standby_replicas=standbys, max_warmup_replicas=warmups)


def task(active: str | None, standbys: str = "", warmups: str = "") -> AssignedTask:
    return AssignedTask(active=active, standbys=tuple(standbys), warmups=tuple(warmups))


def test_without_members_no_task_has_anybody() -> None:
    assert several([], {}, {}) == dict.fromkeys(TASKS, task(None))


def test_at_the_beginning_actives_and_standbys_are_placed_at_once() -> None:
    found = several([A, B], {}, {})
    assert Counter(each.active for each in found.values()) == {"a": 2, "b": 2}
    assert all({each.active, *each.standbys} == {"a", "b"} and not each.warmups for each in found.values())


@pytest.mark.parametrize("tasks", [1, 4])
def test_the_odd_replicas_of_many_applications_lie_at_different_nodes(tasks: int) -> None:
    actives: Counter[str | None] = Counter()
    replicas: Counter[str] = Counter()
    for number in range(300):
        found = assign(
            [A, B, C], TASKS[:tasks], {}, {}, num_standby_replicas=1, max_warmup_replicas=2, application_id=f"q{number}"
        )
        actives.update(each.active for each in found.values())
        replicas.update(node for each in found.values() for node in each.holders)
    for held in (actives, replicas):
        assert min(held.values()) > 0.8 * max(held.values()), held


def test_fewer_nodes_than_replicas_get_as_many_as_possible() -> None:
    assert one([A], task(None), [], standbys=3) == task("a")


@pytest.mark.parametrize(
    ("replicas", "before", "promoted"),
    [
        pytest.param(ready("b") + ready("c", version=8), task("a", "bc"), "b", id="the most caught-up standby"),
        pytest.param(ready("b", version=8) + ready("c"), task("a", "bc"), "c", id="whatever its name"),
        pytest.param(behind("b") + ready("c"), task("a", "bc"), "c", id="never one behind while one is in step"),
        pytest.param(behind("b") + ready("c"), task("a", "b", "c"), "c", id="a warm-up in step before a late standby"),
        pytest.param(
            ready("b", version=8) + ready("c"), task("a", "b", "c"), "b", id="else a standby before a warm-up"
        ),
        pytest.param(behind("b", version=2) + behind("c"), task("a", "bc"), "b", id="the nearest when all are behind"),
        pytest.param(behind("b") + behind("c"), task("a", "", "bc"), "b", id="a warm-up when there is nothing else"),
        pytest.param([], task("a", "bc"), "b", id="some replica when nobody reports anything"),
    ],
)
def test_which_replica_is_promoted_when_the_active_dies(
    replicas: list[Replica], before: AssignedTask, promoted: str
) -> None:
    assert one([B, C], before, replicas, standbys=2).active == promoted


def test_an_active_that_fell_behind_gives_way_to_a_caught_up_standby() -> None:
    assert one([A, B], task("a", "b"), behind("a") + ready("b")) == task("b", "a")


def test_an_active_stays_when_nobody_is_caught_up() -> None:
    assert one([A, B], task("b", "a"), behind("a", "b")) == task("b", "a")


def test_a_node_that_comes_back_is_warm_up_first_and_standby_when_it_is_caught_up() -> None:
    died = one([A], task("b", "a"), ready("a"))
    assert died == task("a")
    back = one([A, B], died, ready("a"))
    assert back == task("a", "", "b")
    assert one([A, B], back, ready("a") + behind("b")) == back
    assert one([A, B], back, ready("a", "b")) == task("a", "b")


def test_a_replica_moves_by_a_warm_up_and_the_old_one_goes_last() -> None:
    before = {key: task("a") for key in TASKS}
    held = {key: ready("a") for key in TASKS}
    moving = several([A, B], before, held, standbys=0)
    moved = [key for key in TASKS if moving[key].warmups]
    assert [moving[key] for key in moved] == [task("a", "", "b")] * 2
    done = several([A, B], moving, held | {key: ready("a", "b") for key in moved}, standbys=0)
    assert [done[key] for key in moved] == [task("b")] * 2


def test_no_more_is_moved_at_a_time_than_allowed() -> None:
    before = {key: task("a") for key in TASKS}
    moving = several([A, B], before, {key: ready("a") for key in TASKS}, standbys=0, warmups=1)
    assert sum(len(each.warmups) for each in moving.values()) == 1


def test_gaps_are_filled_without_counting() -> None:
    before = {key: task("a") for key in TASKS}
    filling = several([A, B], before, {key: ready("a") for key in TASKS}, warmups=1)
    assert list(filling.values()) == [task("a", "", "b")] * 4


def test_a_draining_node_gives_its_role_at_once_and_its_replica_when_another_has_it() -> None:
    draining = Member("a", draining=True)
    first = one([draining, B, C], task("a", "b"), ready("a", "b"))
    assert first == task("b", "a", "c")
    assert one([draining, B, C], first, ready("a", "b") + behind("c")) == first
    assert one([draining, B, C], first, ready("a", "b", "c")) == task("b", "c")


def test_a_draining_node_keeps_an_active_until_another_is_caught_up() -> None:
    draining = Member("a", draining=True)
    first = one([draining, B], task("a"), ready("a"), standbys=0)
    assert first == task("a", "", "b")
    assert one([draining, B], first, ready("a", "b"), standbys=0) == task("b")


def test_nodes_that_all_drain_keep_what_they_have() -> None:
    both = [Member("a", draining=True), Member("b", draining=True)]
    assert one(both, task("a", "b"), ready("a", "b")) == task("a", "b")


def test_a_warm_up_that_replaces_nothing_any_more_is_dropped() -> None:
    draining = Member("a", draining=True)
    held = {key: ready("a", "b") for key in TASKS}
    before = {key: task("a", "b") if key < "0_2" else task("b", "a") for key in TASKS}
    leaving = several([draining, B, C, D], before, held)
    assert any(each.warmups for each in leaving.values())
    assert several([A, B], leaving, held) == before


def test_of_equal_ones_the_warm_up_is_the_one_too_many() -> None:
    assert one([A, B, C], task("a", "b", "c"), ready("a", "b") + behind("c")) == task("a", "b")


def test_a_caught_up_replica_that_was_given_to_nobody_is_taken_when_all_others_died() -> None:
    assert one([A, B], task("c", "d"), ready("b")).active == "b"


def test_a_standby_is_in_another_zone_than_its_active() -> None:
    zones = {"a": "x", "b": "x", "c": "y", "d": "y"}
    found = several([Member(node_id, zone) for node_id, zone in zones.items()], {}, {})
    assert all(len({zones[node] for node in each.holders}) == 2 for each in found.values())


def test_the_actives_of_a_node_that_dies_are_not_all_promoted_on_one_other() -> None:
    tasks = [f"0_{partition}" for partition in range(24)]
    before = assign([A, B, C, D], tasks, {}, {}, num_standby_replicas=1, max_warmup_replicas=2)
    standbys = {each.standbys[0] for each in before.values() if each.active == "a"}
    assert standbys == {"b", "c", "d"}


def test_duties_are_read_from_the_assignment() -> None:
    tasks = {"0_0": task("a", "b"), "0_1": task("b", "a"), "0_2": task("b", "", "a"), "0_3": task("b")}
    assert duties_of(tasks, "a") == {"0_0": Role.ACTIVE, "0_1": Role.STANDBY, "0_2": Role.STANDBY}


# Nodes that are away


def while_away(
    members: list[Member], away: list[Member], before: AssignedTask, replicas: list[Replica], *, standbys: int = 1
) -> AssignedTask:
    """The next assignment of a single task while `away` keep their places."""
    found = assign(
        members,
        ["0_0"],
        {"0_0": before},
        {"0_0": replicas},
        num_standby_replicas=standbys,
        max_warmup_replicas=2,
        away=away,
    )
    return found["0_0"]


@pytest.mark.parametrize(
    ("before", "replicas", "after"),
    [
        pytest.param(task("a", "b"), ready("b"), task("b", "a"), id="its active role moves at once, its place stays"),
        pytest.param(task("b", "a"), ready("b"), task("b", "a"), id="a standby that is away is not replaced"),
        pytest.param(task("b", "c", "a"), ready("b", "c"), task("b", "c"), id="a warm-up keeps no place"),
        pytest.param(task("a", "b"), behind("b"), task("b", "a"), id="the replica that is left, even when behind"),
        pytest.param(task("a", "d"), [], task("b", "a"), id="the last that had it: another begins at once"),
    ],
)
def test_a_node_that_is_away_keeps_its_place(
    before: AssignedTask, replicas: list[Replica], after: AssignedTask
) -> None:
    assert while_away([B, C], [A], before, replicas) == after


def test_a_replica_that_was_not_assigned_serves_when_all_assigned_ones_are_away() -> None:
    assert while_away([B, C], [A], task("a"), ready("c"), standbys=0) == task("c", "a")


def test_a_node_that_comes_back_finds_its_standbys_and_is_active_when_it_is_caught_up() -> None:
    before = {key: task("a", "b") if key < "0_2" else task("b", "a") for key in TASKS}
    died = assign(
        [B], TASKS, before, dict.fromkeys(TASKS, ready("b")), num_standby_replicas=1, max_warmup_replicas=2, away=[A]
    )
    assert list(died.values()) == [task("b", "a")] * 4
    assert several([A, B], died, {key: ready("b") + behind("a") for key in TASKS}) == died
    back = several([A, B], died, {key: ready("a", "b") for key in TASKS})
    assert Counter(each.active for each in back.values()) == {"a": 2, "b": 2}


def test_a_node_that_joins_while_another_is_away_gets_its_share() -> None:
    before = {key: task("b", "a") for key in TASKS}
    found = assign(
        [B, C], TASKS, before, dict.fromkeys(TASKS, ready("b")), num_standby_replicas=1, max_warmup_replicas=2, away=[A]
    )
    assert sum(each.warmups == ("c",) for each in found.values()) == 2


def test_two_tasks_in_one_zone_each_exchange_a_standby() -> None:
    zones = {"a": "x", "b": "x", "c": "y", "d": "y"}
    members = [Member(node_id, zone) for node_id, zone in zones.items()]
    before = {"0_0": task("a", "b"), "0_1": task("c", "d")}
    held = {"0_0": ready("a", "b"), "0_1": ready("c", "d")}
    found = assign(members, list(before), before, held, num_standby_replicas=1, max_warmup_replicas=2)
    assert {key: (each.active, each.standbys, each.warmups) for key, each in found.items()} == {
        "0_0": ("a", ("b",), ("d",)),
        "0_1": ("c", ("d",), ("b",)),
    }
