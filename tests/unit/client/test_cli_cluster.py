"""`explain`, `drain` and `lag` against a real HTTP server with a router's prepared replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.router.replies import EXPLAINED, member, replica, router_report
from tests.support.services.canned_server import PROBLEM, Canned, canned_server

from understudy.commands.draining import tasks_left
from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
from understudy.terminal.explain_report import explain_page
from understudy.terminal.lag_reports import lag_page
from understudy.terminal.pages import Lines, Page, Sheet


def run(arguments: Sequence[str], *replies: object) -> tuple[Result, list[tuple[str, bytes]]]:
    """The command's result, and what the server was asked. Replies are documents, or `Canned` as they are."""
    canned = [reply if isinstance(reply, Canned) else Canned(json.dumps(reply).encode()) for reply in replies]
    with canned_server(canned) as served:
        result = CliRunner().invoke(cli, [*arguments, "--url", served.url])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result, served.requests


def sheets(page: Page) -> list[Sheet]:
    """The tables of a page."""
    return [part for part in page if isinstance(part, Sheet)]


def lines(page: Page) -> list[str]:
    """The text of a page."""
    return [line for part in page if isinstance(part, Lines) for line in part.lines]


def test_explain_asks_by_words_or_by_json_with_the_bounds() -> None:
    result, asked = run(["explain", "aircraft", "a/b", "--max-lag", "0"], EXPLAINED)
    assert (result.exit_code, asked[0][0]) == (0, "GET /v1/stores/aircraft/metadata/a%2Fb?max_lag=0")
    result, asked = run(["explain", "aircraft", "--key", "[null]", "--require-active"], EXPLAINED)
    assert (result.exit_code, asked[0][0]) == (
        0,
        "GET /v1/stores/aircraft/metadata?key=%5Bnull%5D&require_active=true",
    )


def test_explain_shows_the_order_and_everybody_left_out_with_reasons() -> None:
    result, _ = run(["explain", "aircraft", "N1"], EXPLAINED)
    shown = [line.split() for line in result.stdout.splitlines()]
    assert shown[0] == ["aircraft", '{"tailnum":"N1"}']
    assert ["partition", "3", "of", "8"] in shown
    assert ["active", "node-1", "(127.0.0.1:7101)"] in shown
    assert ["standbys", "node-2", "(127.0.0.1:7102),", "127.0.0.1:7104"] in shown
    order, left_out = sheets(explain_page(EXPLAINED))
    assert [row[:3] for row in order.rows] == [("1", "node-2", "standby")]
    assert order.rows[0][-1] == "least lag of the standbys"
    assert [(row[0], row[-1]) for row in left_out.rows] == [("node-1", "lag-exceeded"), ("node-3", "lag-unknown")]
    assert left_out.rows[1][2:] == ("unknown", "-", "unknown", "unknown", "lag-unknown")
    assert "bounds     max_lag 1" in result.stdout


def test_explain_says_so_when_nobody_may_answer() -> None:
    page = explain_page({**EXPLAINED, "choice": [], "active_host": None})
    assert "no replica may answer" in lines(page)
    assert "  active     none" in lines(page)


def test_explain_of_a_single_node_says_that_a_router_is_needed() -> None:
    problem = {"type": "unknown-path", "title": "t", "status": 404, "detail": "there is nothing at /v1/..."}
    result, _ = run(["explain", "aircraft", "N1"], Canned(json.dumps(problem).encode(), 404, PROBLEM))
    assert result.exit_code == ExitCode.REFUSED
    assert "is a node" in result.stderr
    assert "Name a router with --url" in result.stderr


def test_explain_of_an_unknown_store_is_wrong_usage_as_everywhere() -> None:
    problem = {"type": "unknown-store", "title": "t", "status": 404, "detail": "there is no store 'x'"}
    result, _ = run(["explain", "x", "N1", "--json"], Canned(json.dumps(problem).encode(), 404, PROBLEM))
    assert (result.exit_code, json.loads(result.stdout)) == (ExitCode.USAGE, problem)
    assert result.stderr.startswith("error: there is no store 'x'")


@pytest.mark.parametrize("arguments", [["s"], ["s", "a", "--key", "[1]"], ["s", ""], ["s", "--key", "{"]])
def test_explain_takes_one_key_in_one_form(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["explain", *arguments], env={"UNDERSTUDY_URL": "http://127.0.0.1:1"})
    assert result.exit_code == ExitCode.USAGE


def test_the_lag_of_a_router_shows_every_replica_the_nodes_and_the_bus() -> None:
    result, _ = run(["lag"], router_report())
    assert result.exit_code == 0
    assert "flights: end 420, assignment 2 of term 1 by node-1, bus connected" in result.stdout
    nodes, replicas = sheets(lag_page(router_report()))
    assert [row[0] for row in nodes.rows] == ["node-1", "node-2"]
    assert [row[:5] for row in replicas.rows] == [
        ("aircraft", "0", "node-1", "active", "RUNNING"),
        ("aircraft", "0", "node-2", "standby", "RESTORING"),
        ("aircraft", "1", "node-2", "active", "RUNNING"),
    ]
    assert replicas.rows[1][5:] == ("400/420", "20", "60.0 s", "310 ms")


def test_what_a_router_does_not_know_is_never_shown_as_a_number() -> None:
    silent = replica(0, "node-1", "active", None, position=None, end=None, lag=None)
    dead = member("node-1", live=False, version=None, heartbeat_age_ms=None, active=None)
    degraded = {"state": "degraded", "why": "connection refused"}
    page = lag_page(
        router_report(
            nodes=[dead],
            partitions=[silent],
            bus=degraded,
            assignment=None,
            end_confirmed=False,
            end_offset_position=None,
        )
    )
    nodes, replicas = sheets(page)
    assert nodes.rows[0][2:7] == ["dead", "never", "-", "unknown", "0"]
    assert replicas.rows[0][4:8] == ("unknown", "-", "unknown", "unknown")
    (header,) = [line for line in lines(page) if line.startswith("flights")]
    assert header == ("flights: end unknown (not confirmed), no assignment yet, bus degraded: connection refused")


def test_zones_and_reasons_have_columns_only_where_there_are_any() -> None:
    plain, _ = sheets(lag_page(router_report()))
    assert not {"zone", "why"} & set(plain.columns)
    sheet, _ = sheets(lag_page(router_report(nodes=[member("a", zone="z1"), member("b", reason="suspect: silent")])))
    assert [(row[2], row[-1]) for row in sheet.rows] == [("z1", ""), ("-", "suspect: silent")]


def test_a_node_that_is_not_well_says_so_beside_its_state() -> None:
    members = [member("a"), member("b", health="suspect"), member("c", health="quarantined", state="draining")]
    sheet, _ = sheets(lag_page(router_report(nodes=[*members, member("d", live=False, health=None)])))
    assert [row[2] for row in sheet.rows] == ["serving", "serving, suspect", "draining, quarantined", "dead"]


def test_an_error_of_a_replica_stands_below_with_its_node() -> None:
    broken = {**replica(0, "node-2", "standby", "CLOSED"), "error": "disk\nfull"}
    page = lag_page(router_report(partitions=[broken]))
    assert "error: aircraft partition 0 on node-2: disk\\u000afull" in lines(page)


def left(
    state: str, *, active: int, standby: int = 0, live: bool = True, said_ms_ago: float = 0, other: str = "serving"
) -> dict[str, Any]:
    """A report in which node-1 has so much, and spoke so long ago; `other` is the state of node-2."""
    node = member("node-1", state=state, active=active, standby=standby, live=live, heartbeat_age_ms=said_ms_ago)
    return router_report(nodes=[node, member("node-2", state=other, live=other != "dead")])


DRAINING = Canned(b'{"node_id":"node-1","draining":true}', 202)


def test_drain_asks_the_router_and_shows_the_tasks_that_are_left_until_none_is() -> None:
    empty = left("draining", active=0)
    reports = [left("serving", active=5), left("draining", active=3, standby=2), empty, empty]
    result, asked = run(["drain", "node-1"], DRAINING, *reports)
    assert result.exit_code == ExitCode.OK
    assert asked[0] == ("POST /admin/v1/nodes/node-1/drain", b'{"drain":true}')
    assert [target for target, _ in asked[1:]] == ["GET /admin/v1/lag"] * 4
    assert result.stdout.splitlines() == [
        "node-1 is serving: 5 active, 0 standby, 0 warmup",
        "node-1 is draining: 3 active, 2 standby, 0 warmup",
        "node-1 holds nothing",
        "node-1 can be stopped",
    ]


def test_an_empty_node_can_be_stopped_when_it_has_spoken_since_and_still_is_empty() -> None:
    silent = left("draining", active=0, said_ms_ago=60_000)
    reports = [silent, silent, left("draining", active=1), left("draining", active=0), left("draining", active=0)]
    result, asked = run(["drain", "node-1"], DRAINING, *reports)
    assert (result.exit_code, len(asked) - 1) == (ExitCode.OK, 5)
    assert result.stdout.splitlines()[-1] == "node-1 can be stopped"
    assert result.stdout.count("can be stopped") == 1


@pytest.mark.parametrize("other", ["draining", "leaving", "failed", "dead"])
def test_a_drain_that_cannot_end_because_nobody_can_take_the_tasks_says_so_at_once(other: str) -> None:
    result, asked = run(["drain", "node-1"], DRAINING, left("draining", active=3, other=other))
    assert (result.exit_code, len(asked) - 1) == (ExitCode.REFUSED, 1)
    assert "no other node can take what node-1 holds: node-1 is draining: 3 active" in result.stderr
    assert "--undo" in result.stderr


def test_a_node_that_holds_nothing_needs_nobody_to_take_it() -> None:
    result, _ = run(["drain", "node-1"], DRAINING, left("draining", active=0, other="dead"))
    assert result.exit_code == ExitCode.OK


def test_a_node_that_has_nothing_yet_is_drained_when_the_router_has_heard_that_it_drains() -> None:
    result, asked = run(["drain", "node-1"], DRAINING, left("serving", active=0), left("draining", active=0))
    assert (result.exit_code, len(asked)) == (ExitCode.OK, 4)


def test_drain_ends_when_the_node_has_left() -> None:
    result, _ = run(["drain", "node-1"], DRAINING, left("draining", active=3), left("draining", active=3, live=False))
    assert result.exit_code == ExitCode.OK
    assert result.stdout.splitlines()[-1] == "node-1 has left the cluster"


def test_drain_that_takes_too_long_says_what_is_left() -> None:
    result, _ = run(["drain", "node-1", "--within-s", "0.001"], DRAINING, left("draining", active=3))
    assert result.exit_code == ExitCode.REFUSED
    assert "not drained within 0.001 s: node-1 is draining: 3 active" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "body", "outcome"),
    [(["--undo"], b'{"drain":false}', "takes tasks again"), (["--no-wait"], b'{"drain":true}', "is draining")],
    ids=["undo", "no-wait"],
)
def test_drain_without_waiting_asks_once(arguments: list[str], body: bytes, outcome: str) -> None:
    result, asked = run(["drain", "a b", *arguments], DRAINING)
    assert (result.exit_code, asked) == (0, [("POST /admin/v1/nodes/a%20b/drain", body)])
    assert result.stdout == f"a b {outcome}\n"


def test_drain_as_json_prints_a_document_per_change() -> None:
    result, _ = run(["drain", "node-1", "--json"], DRAINING, left("draining", active=3), left("draining", active=0))
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert documents[0] == {"node_id": "node-1", "draining": True}
    assert [tasks_left(document) for document in documents[1:]] == [3, 0]


def test_a_node_that_the_router_does_not_know_is_an_error_in_the_routers_words() -> None:
    problem = {"type": "unknown-path", "title": "t", "status": 404, "detail": "there is no node 'x'", "fix": "node-1"}
    result, _ = run(["drain", "x"], Canned(json.dumps(problem).encode(), 404, PROBLEM))
    assert (result.exit_code, result.stderr) == (ExitCode.USAGE, "error: there is no node 'x'\n  fix: node-1\n")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [({"active": None, "standby": 0, "warmup": 0}, None), ({"active": 1, "standby": 2, "warmup": 3}, 6), (None, 0)],
    ids=["unknown", "known", "gone"],
)
def test_tasks_left_are_unknown_until_the_router_knows(counts: Mapping[str, Any] | None, expected: int | None) -> None:
    assert tasks_left(counts) == expected
