"""`understudy doctor` on a checkpoint and on a server: facts, what is wrong, what to do, and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.canned_server import PROBLEM, Canned, canned_server

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode

LIVE, READY = Canned(b'{"live": true}'), Canned(b'{"ready": true, "reasons": []}')
STORES = Canned(b'{"stores": [{"store": "aircraft"}], "not_served": []}')


def run(target: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", target, *arguments])


def health(state: str) -> Canned:
    indicator = {"name": "bus", "state": state, "symptom": "Redis is away", "cause": "", "action": "Bring it back"}
    return Canned(json.dumps({"headline": "h", "state": state, "indicators": [indicator]}).encode())


def test_a_checkpoint_is_described_and_what_could_be_better_is_a_hint(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "counts").create().add(1, 2, 3)
    result = run(str(checkpoint.path), "--json")
    assert result.exit_code == ExitCode.OK, result.output
    report = json.loads(result.stdout)
    assert report["operators"][0]["stores"] == ["op0"]
    assert report["versions"][1] >= 1
    assert {each["state"] for each in report["findings"]} <= {"hint"}
    text = run(str(checkpoint.path)).stdout
    assert "op0" in text
    assert report["query_id"] in text


def test_what_is_no_checkpoint_is_refused_with_what_to_do(tmp_path: Path) -> None:
    result = run(str(tmp_path))
    assert result.exit_code == ExitCode.REFUSED
    assert "fix:" in result.stderr


@pytest.mark.parametrize(
    ("state", "code"), [("ok", ExitCode.OK), ("attention", ExitCode.OK), ("hurt", ExitCode.REFUSED)]
)
def test_a_server_is_asked_whether_it_is_ready_what_it_serves_and_how_it_is(state: str, code: ExitCode) -> None:
    with canned_server([LIVE, READY, STORES, health(state)]) as served:
        result = run(served.url)
    assert result.exit_code == code, result.output
    assert "aircraft" in result.stdout
    assert ("Bring it back" in result.stdout) is (state != "ok")


UNKNOWN = Canned(b'{"type": "unknown-path", "title": "x", "detail": "d", "status": 404}', 404, PROBLEM)
APPLICATIONS = [
    {"application": "orders", "state": "serving", "reason": None},
    {"application": "clicks", "state": "failed", "reason": "no rights"},
]


def test_a_fleet_says_which_application_is_not_served_and_one_is_examined_alone() -> None:
    listed = Canned(json.dumps({"applications": APPLICATIONS}).encode())
    with canned_server([LIVE, READY, STORES, UNKNOWN, listed]) as served:
        result = run(served.url)
    assert result.exit_code == ExitCode.REFUSED
    assert "application clicks is failed: no rights" in result.stdout
    assert "--application clicks" in result.stdout
    assert "orders is" not in result.stdout
    with canned_server([LIVE, READY, STORES, health("ok")]) as served:
        assert run(served.url, "--application", "orders").exit_code == ExitCode.OK
    asked = [target for target, _ in served.requests]
    assert asked[2:] == ["GET /v1/applications/orders/stores", "GET /admin/v1/applications/orders/health"]


def test_a_server_that_wants_a_key_and_is_not_ready_says_both() -> None:
    problem = {"type": "unauthenticated", "title": "x", "detail": "a key is needed", "status": 401}
    refused = Canned(json.dumps(problem).encode(), 401, PROBLEM)
    unready = Canned(b'{"ready": false, "reasons": ["partition 1 restores"]}', 503)
    with canned_server([LIVE, unready, refused, refused]) as served:
        result = run(served.url)
    assert result.exit_code == ExitCode.REFUSED
    assert "it is not ready: partition 1 restores" in result.stdout
    assert "it does not show its stores: a key is needed" in result.stdout
    assert "UNDERSTUDY_API_KEY_FILE" in result.stdout


def test_a_server_that_cannot_be_reached_ends_with_its_own_code() -> None:
    assert run("http://127.0.0.1:1").exit_code == ExitCode.UNREACHABLE
