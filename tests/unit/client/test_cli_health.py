"""`health`, `safe-to-stop`, and a lag report that is sorted and filtered, against a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.router.replies import replica, router_report
from tests.support.services.canned_server import PROBLEM, Canned, canned_server

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
from understudy.terminal.lag_reports import SORTS, arranged

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


def run(arguments: Sequence[str], *replies: object) -> tuple[Result, list[str]]:
    canned = [reply if isinstance(reply, Canned) else Canned(json.dumps(reply).encode()) for reply in replies]
    with canned_server(canned) as served:
        result = CliRunner().invoke(cli, [*arguments, "--url", served.url])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result, [target for target, _ in served.requests]


def test_a_node_that_is_safe_to_stop_ends_with_zero_and_one_that_is_not_with_what_would_be_lost() -> None:
    result, asked = run(["safe-to-stop", "a/b"], answer(safe=True))
    assert (result.exit_code, result.stdout) == (ExitCode.OK, "yes: because\n")
    assert asked == ["GET /admin/v1/nodes/a%2Fb/safe-to-stop"]
    result, _ = run(["safe-to-stop", "n"], answer(safe=False, lost=25))
    assert result.exit_code == ExitCode.REFUSED
    assert result.stdout.startswith("no: because\nno other node has a caught-up replica of aircraft 0, aircraft 1,")
    assert result.stdout.endswith("aircraft 19 and 5 more\n")
    assert "understudy drain n" in result.stderr


def test_safe_to_stop_asks_again_until_it_is_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.commands.operating.ASK_EVERY_S", 0)
    away = {"type": "not-initialised", "title": "t", "status": 503, "detail": "nothing is known yet"}
    replies = (Canned(json.dumps(away).encode(), 503, PROBLEM), answer(safe=False, lost=1), answer(safe=True))
    result, asked = run(["safe-to-stop", "n", "--within-s", "60"], *replies)
    assert (result.exit_code, result.stdout) == (ExitCode.OK, "yes: because\n")
    assert len(asked) == 3


def test_safe_to_stop_gives_the_last_answer_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.commands.operating.ASK_EVERY_S", 0)
    result, asked = run(["safe-to-stop", "n", "--within-s", "0.3"], answer(safe=False, lost=1))
    assert result.exit_code == ExitCode.REFUSED
    assert len(asked) > 1
    away = {"type": "not-initialised", "title": "t", "status": 503, "detail": "nothing is known yet"}
    result, _ = run(["safe-to-stop", "n", "--within-s", "0.3"], Canned(json.dumps(away).encode(), 503, PROBLEM))
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
