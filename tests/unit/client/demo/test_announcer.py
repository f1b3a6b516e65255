"""What the demo makes of a router's reports and of answers, and what it says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.router.replies import member, replica, router_report

from understudy.demo.announcer import Ready, ready_facts, ready_lines
from understudy.demo.asking import answer_line, changes, unplaced
from understudy.demo.processes import DemoOptions, make_plan, wanted_ports

TWO_NODES = [member("node-1"), member("node-2")]


def test_nothing_is_announced_while_nothing_changes() -> None:
    assert changes(router_report(), router_report(end_offset_position=421)) == []


def test_a_node_that_dies_and_the_actives_that_move_are_announced() -> None:
    before = router_report(
        nodes=TWO_NODES,
        partitions=[replica(part, "node-1", "active", "RUNNING") for part in range(3)]
        + [replica(part, "node-2", "standby", "RUNNING") for part in range(3)],
    )
    after = router_report(
        nodes=[member("node-1", live=False), member("node-2")],
        partitions=[replica(part, "node-2", "active", "RUNNING") for part in range(3)],
    )
    assert changes(before, after) == [
        ("node", "node-1 is dead (was serving)"),
        ("active", "node-2 took 3 store partitions over from node-1"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (TWO_NODES[:1], TWO_NODES, "node-2 is serving (was not there)"),
        (TWO_NODES, TWO_NODES[:1], "node-2 is not there (was serving)"),
        (TWO_NODES, [TWO_NODES[0], member("node-2", state="draining")], "node-2 is draining (was serving)"),
    ],
    ids=["comes", "goes", "drains"],
)
def test_a_node_that_comes_goes_or_drains_is_announced(
    before: list[dict[str, Any]], after: list[dict[str, Any]], message: str
) -> None:
    assert changes(router_report(nodes=before), router_report(nodes=after)) == [("node", message)]


def test_a_bus_that_is_away_is_announced_with_the_reason() -> None:
    away = router_report(bus={"state": "degraded", "why": "connection refused"})
    assert changes(router_report(), away) == [("bus", "the bus is degraded: connection refused")]


@pytest.mark.parametrize(
    ("replicas", "is_placed"),
    [
        ([replica(0, "a", "active", "RUNNING"), replica(0, "b", "standby", "RUNNING")], True),
        ([replica(0, "a", "active", "RUNNING"), replica(0, "b", "standby", "RESTORING")], False),
        ([replica(0, "a", "active", "RUNNING")], False),
        ([replica(0, "a", "standby", "RUNNING"), replica(0, "b", "standby", "RUNNING")], False),
    ],
    ids=["placed", "restoring", "alone", "no-active"],
)
def test_replicas_are_in_place_when_an_active_and_a_standby_have_caught_up(
    replicas: list[dict[str, Any]], is_placed: bool
) -> None:
    assert (unplaced(router_report(partitions=replicas), replicas=2) == "") is is_placed


def test_a_cluster_without_stores_is_not_in_place() -> None:
    assert unplaced(router_report(stores=[]), replicas=1) == "no store is known yet"


ANSWER: dict[str, Any] = {
    "found": True,
    "value": {"count": 15, "sum": 3.5},
    "version": 4,
    "lag": {"offset_lag": 0},
    "served_by": {"host": "127.0.0.1", "port": 7101, "role": "active"},
}


def test_an_answer_in_one_line_has_its_age_and_the_node_that_gave_it() -> None:
    assert answer_line(ANSWER) == "count 15, sum 3.5  (version 4, 0 behind, from 127.0.0.1:7101, active)"
    assert answer_line({**ANSWER, "result": {"flights": 15}}).startswith("flights 15  (")
    assert answer_line({**ANSWER, "found": False}).startswith("absent  (")
    assert "version 4, lag unknown," in answer_line({**ANSWER, "lag": {"offset_lag": None}})


def test_the_page_is_the_first_thing_that_the_demo_says() -> None:
    options = DemoOptions(nodes=1, routers=2)
    plan = make_plan(options, folder=Path("/tmp/demo"), redis="unix:///r.sock", ports=wanted_ports(options))
    ready = Ready(plan, 1, ("Redis", "7.0.15"), (), ANSWER, None)
    said = next(line for line in ready_lines(ready, ["understudy"]) if line)
    assert said == "Watch it at http://127.0.0.1:8080/admin/"
    assert ready_facts(ready)["page"] == "http://127.0.0.1:8080/admin/"
    assert ready_facts(ready)["processes"] == [
        {"name": "redis", "role": "valkey", "pid": 1, "url": plan.redis, "argv": [], "version": "7.0.15"}
    ]
    assert any(line.endswith("pid 1, Redis 7.0.15") for line in ready_lines(ready, ["understudy"]))
