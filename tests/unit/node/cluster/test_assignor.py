"""The assignor case by case: who gets what, and when."""

from __future__ import annotations

from collections import Counter

import pytest

from understudy_node.cluster.assignor import Member, Replica, assign
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


def test_a_draining_node_gives_its_role_at_once_and_its_replica_when_another_has_it() -> None:
    draining = Member("a", draining=True)
    first = one([draining, B, C], task("a", "b"), ready("a", "b"))
    assert first == task("b", "a", "c")
    assert one([draining, B, C], first, ready("a", "b") + behind("c")) == first
    assert one([draining, B, C], first, ready("a", "b", "c")) == task("b", "c")


def test_the_actives_of_a_node_that_dies_are_not_all_promoted_on_one_other() -> None:
    tasks = [f"0_{partition}" for partition in range(24)]
    before = assign([A, B, C, D], tasks, {}, {}, num_standby_replicas=1, max_warmup_replicas=2)
    standbys = {each.standbys[0] for each in before.values() if each.active == "a"}
    assert standbys == {"b", "c", "d"}


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
