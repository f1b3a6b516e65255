"""`health`, `safe-to-stop`, `explain`, `drain` and `lag` against a real HTTP server with prepared replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.router.replies import EXPLAINED, member, replica, router_report
from tests.support.services.canned_server import PROBLEM, Canned, canned_server

from understudy.commands.group import cli
from understudy.commands.operating import tasks_left
from understudy.terminal.console import Lines, Page, Sheet
from understudy.terminal.exits import ExitCode
from understudy.terminal.lag_reports import SORTS, arranged
from understudy.terminal.reports import explain_page

STARTING = Canned(b'{"type":"not-initialised","title":"t","status":503,"detail":"nothing is known yet"}', 503, PROBLEM)
"""The answer of a router that has just started."""
OK: dict[str, Any] = {"symptom": "", "impact": "", "cause": "", "action": "", "runbook": None, "affected": []}


def health(state: str = "ok", headline: str = "all well") -> dict[str, Any]:
    indicators = [
        {"name": "reads", "state": "ok", **OK},
        {"name": "bus", "state": state, **OK, "symptom": "Redis\x1b is not heard", "action": "bring it back"},
    ]
    head = {"schema": 1, "application_id": "flights", "router": "r:8080"}
    return {**head, "state": state, "headline": headline, "indicators": indicators}


def answer(*, safe: bool, lost: int = 0) -> dict[str, Any]:
    listed = [{"store": "aircraft", "partition": number} for number in range(lost)]
    counts = {"last_replica": lost, "active": 0, "bound": 0}
    would_lose = {"last_replica": listed, "active": [], "bound": [], "counts": counts}
    return {"node_id": "n", "safe": safe, "why": "because", "would_lose": would_lose, "checked_at": "now"}


def run(arguments: Sequence[str], *replies: object) -> tuple[Result, list[tuple[str, bytes]]]:
    """The command's result, and what the server was asked. Replies are documents, or `Canned` as they are."""
    canned = [reply if isinstance(reply, Canned) else Canned(json.dumps(reply).encode()) for reply in replies]
    with canned_server(canned) as served:
        result = CliRunner().invoke(cli, [*arguments, "--url", served.url])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result, served.requests


def test_a_node_that_is_safe_to_stop_ends_with_zero_and_one_that_is_not_with_what_would_be_lost() -> None:
    result, asked = run(["safe-to-stop", "a/b"], answer(safe=True))
    assert (result.exit_code, result.stdout) == (ExitCode.OK, "yes: because\n")
    assert [target for target, _ in asked] == ["GET /admin/v1/nodes/a%2Fb/safe-to-stop"]
    result, _ = run(["safe-to-stop", "n"], answer(safe=False, lost=25))
    assert result.exit_code == ExitCode.REFUSED
    assert result.stdout.startswith("no: because\nno other node has a caught-up replica of aircraft 0, aircraft 1,")
    assert result.stdout.endswith("aircraft 19 and 5 more\n")
    assert "understudy drain n" in result.stderr


def test_safe_to_stop_asks_again_until_it_is_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.commands.operating.ASK_EVERY_S", 0)
    replies = (STARTING, answer(safe=False, lost=1), answer(safe=True))
    result, asked = run(["safe-to-stop", "n", "--within-s", "60"], *replies)
    assert (result.exit_code, result.stdout) == (ExitCode.OK, "yes: because\n")
    assert len(asked) == 3


def test_safe_to_stop_gives_the_last_answer_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.commands.operating.ASK_EVERY_S", 0)
    result, asked = run(["safe-to-stop", "n", "--within-s", "0.3"], answer(safe=False, lost=1))
    assert result.exit_code == ExitCode.REFUSED
    assert len(asked) > 1
    result, _ = run(["safe-to-stop", "n", "--within-s", "0.3"], STARTING)
    assert (result.exit_code, result.stderr) == (ExitCode.REFUSED, "error: nothing is known yet\n")


def places(report: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each["partition"], each["node_id"]) for store in report["stores"] for each in store["partitions"]]


def test_a_report_is_sorted_with_the_unknown_as_the_worst_and_filtered() -> None:
    replicas = [
        replica(0, "b", "active", "RUNNING", lag=3),
        replica(1, "a", "standby", None, lag=None),
        replica(2, "a", "standby", "RUNNING", lag=0),
    ]
    report = router_report(partitions=replicas)
    assert places(arranged(report, sort="-lag")) == [(1, "a"), (0, "b"), (2, "a")]
    assert places(arranged(report, sort="lag")) == [(2, "a"), (0, "b"), (1, "a")]
    assert places(arranged(report, sort="node")) == [(1, "a"), (2, "a"), (0, "b")]
    assert places(arranged(report, sort="-store")) == [(2, "a"), (1, "a"), (0, "b")]
    assert places(arranged(report)) == [(0, "b"), (1, "a"), (2, "a")]
    assert places(arranged(report, role="active")) == [(0, "b")]
    assert places(arranged(report, state="UNKNOWN")) == [(1, "a")]
    for sort in SORTS:
        assert sorted(places(arranged(report, sort=sort))) == [(0, "b"), (1, "a"), (2, "a")]


@pytest.mark.parametrize("command", [["export", "aircraft", "--out"], ["sql", "select 1", "--output"]])
def test_an_ending_that_names_no_format_is_refused_before_anything_is_asked(command: list[str]) -> None:
    result, asked = run([*command, "x.duck"])
    assert (result.exit_code, asked) == (ExitCode.USAGE, [])
    assert "nothing is written as .duck" in result.stderr
    assert ".parquet" in result.stderr


def sheets(page: Page) -> list[Sheet]:
    return [part for part in page if isinstance(part, Sheet)]


def lines(page: Page) -> list[str]:
    return [line for part in page if isinstance(part, Lines) for line in part.lines]


def test_explain_asks_by_words_or_by_json_with_the_bounds() -> None:
    result, asked = run(["explain", "aircraft", "a-b", "--max-lag", "0"], EXPLAINED)
    assert (result.exit_code, asked[0][0]) == (0, "GET /v1/stores/aircraft/metadata/a-b?max_lag=0")
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


def left(
    state: str, *, active: int, standby: int = 0, live: bool = True, said_ms_ago: float = 0, other: str = "serving"
) -> dict[str, Any]:
    """A report in which node-1 has so much, and spoke so long ago; `other` is the state of node-2."""
    node = member("node-1", state=state, active=active, standby=standby, live=live, heartbeat_age_ms=said_ms_ago)
    return router_report(nodes=[node, member("node-2", state=other, live=other != "dead")])


DRAINING = Canned(b'{"node_id":"node-1","draining":true}', 202)


def test_drain_asks_the_router_and_shows_the_tasks_that_are_left_until_none_is() -> None:
    """A router that starts anew meanwhile ends no drain: who stops the node next would stop it too early."""
    empty = left("draining", active=0)
    reports = [left("serving", active=5), STARTING, left("draining", active=3, standby=2), empty, empty]
    result, asked = run(["drain", "node-1"], DRAINING, *reports)
    assert result.exit_code == ExitCode.OK
    assert asked[0] == ("POST /admin/v1/nodes/node-1/drain", b'{"drain":true}')
    assert [target for target, _ in asked[1:]] == ["GET /admin/v1/lag"] * 5
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


def test_drain_ends_when_the_node_has_left() -> None:
    result, _ = run(["drain", "node-1"], DRAINING, left("draining", active=3), left("draining", active=3, live=False))
    assert result.exit_code == ExitCode.OK
    assert result.stdout.splitlines()[-1] == "node-1 has left the cluster"


def test_drain_that_takes_too_long_says_what_is_left() -> None:
    result, _ = run(["drain", "node-1", "--within-s", "0.001"], DRAINING, left("draining", active=3))
    assert result.exit_code == ExitCode.REFUSED
    assert "not drained within 0.001 s: node-1 is draining: 3 active" in result.stderr


AWAY = {"state": "degraded", "why": "Redis is away: connection refused"}


def test_drain_while_redis_is_away_says_so_at_once() -> None:
    report = {**left("draining", active=3), "bus": AWAY}
    result, asked = run(["drain", "node-1"], DRAINING, report)
    assert (result.exit_code, len(asked) - 1) == (ExitCode.REFUSED, 1)
    assert "no task moves until Redis is back: Redis is away: connection refused; node-1 is draining" in result.stderr
    result, _ = run(
        ["drain", "node-1", "--no-wait"], Canned(json.dumps({"node_id": "node-1", "bus": AWAY}).encode(), 202)
    )
    assert "node-1 is draining; no task moves until Redis is back" in result.stdout


UNREACHED = {"state": "degraded", "why": "Redis was not reached yet"}
UNHEARD = member("node-1", state="unheard", live=False)
"""A node that the router knows from its remembered assignment alone."""


@pytest.mark.parametrize(
    ("ignorant", "line"),
    [
        (router_report(nodes=[], assignment=None), "the router does not know yet what node-1 holds"),
        (
            router_report(nodes=[], assignment=None, bus=UNREACHED),
            "the router does not know yet what node-1 holds; no task moves until Redis is back",
        ),
        (
            router_report(nodes=[UNHEARD, member("node-2")], bus=UNREACHED),
            "the router does not know yet what node-1 holds; no task moves until Redis is back",
        ),
    ],
    ids=["Redis was flushed", "nothing is known", "another node was asked"],
)
def test_a_router_that_has_not_heard_the_node_yet_ends_no_drain(ignorant: dict[str, Any], line: str) -> None:
    empty = left("draining", active=0)
    result, _ = run(["drain", "node-1"], DRAINING, left("draining", active=3), ignorant, empty, empty)
    assert result.exit_code == ExitCode.OK
    assert result.stdout.splitlines() == [
        "node-1 is draining: 3 active, 0 standby, 0 warmup",
        line,
        "node-1 holds nothing",
        "node-1 can be stopped",
    ]


def test_drain_at_a_router_that_knows_nothing_while_redis_is_away_says_so_at_once() -> None:
    result, asked = run(["drain", "node-1"], DRAINING, router_report(nodes=[], assignment=None, bus=AWAY))
    assert (result.exit_code, len(asked) - 1) == (ExitCode.REFUSED, 1)
    assert "no task moves until Redis is back" in result.stderr
    assert "the router does not know yet what node-1 holds" in result.stderr


def test_a_node_that_the_router_saw_die_has_left_while_redis_is_away_too() -> None:
    gone = {**left("dead", active=0, live=False), "bus": AWAY}
    result, _ = run(["drain", "node-1"], DRAINING, left("draining", active=3), gone)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (ExitCode.OK, "node-1 has left the cluster")


def test_drain_at_a_fleet_waits_for_each_application_and_shows_the_sum() -> None:
    taken = {"node_id": "node-1", "drain": True, "applications": {"a/b": {}, "c": {}}}
    empty = left("draining", active=0)
    first, second = left("draining", active=2), left("draining", active=3, standby=1)
    result, asked = run(
        ["drain", "node-1"], Canned(json.dumps(taken).encode(), 202), first, second, empty, second, empty, empty, empty
    )
    assert result.exit_code == ExitCode.OK
    targets = [target.removeprefix("GET /admin/v1/applications/") for target, _ in asked[1:]]
    assert targets == ["a%2Fb/lag", "c/lag", "a%2Fb/lag", "c/lag", "a%2Fb/lag", "c/lag", "c/lag"]
    assert result.stdout.splitlines() == [
        "node-1 is draining: 5 active, 1 standby, 0 warmup in 2 applications",
        "node-1 is draining: 3 active, 1 standby, 0 warmup in 2 applications",
        "node-1 holds nothing",
        "node-1 can be stopped",
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [({"active": None, "standby": 0, "warmup": 0}, None), ({"active": 1, "standby": 2, "warmup": 3}, 6), (None, 0)],
    ids=["unknown", "known", "gone"],
)
def test_tasks_left_are_unknown_until_the_router_knows(counts: Mapping[str, Any] | None, expected: int | None) -> None:
    assert tasks_left(counts) == expected
