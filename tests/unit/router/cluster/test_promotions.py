"""A failover is a few lines, whatever number of tasks a node had: the reason for it stays in sight."""

from __future__ import annotations

from tests.support.router.tables import assigned, happened, task

from understudy_router.cluster.tables import Tables, promotions


def test_a_node_with_a_thousand_actives_hands_them_over_in_a_line_for_each_taker() -> None:
    keys = [f"0_{number}" for number in range(1000)]
    before = assigned({key: task("a", "b", "c") for key in keys})
    after = assigned({key: task("b" if place % 4 else "c") for place, key in enumerate(keys)}, order=(1, 2))
    assert list(promotions(before, after)) == [
        "b is active for 0_1, 0_2, 0_3 and 747 more, after a",
        "c is active for 0_0, 0_4, 0_8 and 247 more, after a",
    ]


def test_what_happened_before_a_failover_stays_in_the_list() -> None:
    tables = Tables()
    tables.bus_back(0)
    keys = [f"0_{number}" for number in range(2000)]
    tables.assigned(assigned({key: task("a", "b") for key in keys}))
    tables.bus_lost(1, "away")
    tables.assigned(assigned({key: task("b") for key in keys}, order=(1, 2)), 3)
    assert happened(tables) == ["bus-back", "bus-lost", "promoted"]
