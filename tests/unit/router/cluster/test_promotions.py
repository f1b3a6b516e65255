"""A failover is a few lines, whatever number of tasks a node had: the reason for it stays in sight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import stores_named
from tests.support.router.tables import assigned, happened, task

from understudy_router.cluster.promotions import MAX_LINES, promotions
from understudy_router.cluster.tables import Tables

NODES = st.sampled_from([None, "a", "b", "c"])


def test_a_node_with_a_thousand_actives_hands_them_over_in_a_line_for_each_taker() -> None:
    keys = [f"0_{number}" for number in range(1000)]
    before = assigned({key: task("a", "b", "c") for key in keys})
    after = assigned({key: task("b" if place % 4 else "c") for place, key in enumerate(keys)}, order=(1, 2))
    assert list(promotions(before, after)) == [
        "b is active for 0_1, 0_2, 0_3 and 747 more, after a",
        "c is active for 0_0, 0_4, 0_8 and 247 more, after a",
    ]


def test_a_task_that_nobody_takes_over_and_one_that_had_nobody_are_said_so() -> None:
    before, after = assigned({"0_0": task("a"), "0_1": task(None)}), assigned({"0_0": task(None), "0_1": task("b")})
    assert set(promotions(before, after)) == {
        "nobody is active for 0_0, after a",
        "b is active for 0_1, after nobody",
    }


def test_people_read_stores_and_partitions_not_tasks() -> None:
    stores = stores_named({"aircraft": 0, "routes": 1}, partitions=8)
    before = assigned({"0_0": task("a"), "1_7": task("a"), "9_1": task("a")})
    after = assigned({"0_0": task("b"), "1_7": task("b"), "9_1": task("b")}, order=(1, 2))
    assert list(promotions(before, after, stores.place)) == ["b is active for aircraft 0, routes 7, 9_1, after a"]


@given(st.lists(st.tuples(NODES, NODES), max_size=40))
def test_every_task_that_moved_is_counted_in_one_line(moves: list[tuple[str | None, str | None]]) -> None:
    before = assigned({f"0_{number}": task(old) for number, (old, _) in enumerate(moves)})
    after = assigned({f"0_{number}": task(new) for number, (_, new) in enumerate(moves)})
    lines = list(promotions(before, after))
    moved = {(new, old) for old, new in moves if old != new}
    assert len(lines) == len(moved) <= MAX_LINES


def test_what_happened_before_a_failover_stays_in_the_list() -> None:
    tables = Tables()
    tables.bus_back(0)
    keys = [f"0_{number}" for number in range(2000)]
    tables.assigned(assigned({key: task("a", "b") for key in keys}))
    tables.bus_lost(1, "away")
    tables.assigned(assigned({key: task("b") for key in keys}, order=(1, 2)), 3)
    assert happened(tables) == ["bus-back", "bus-lost", "promoted"]
