"""`lag --watch`: again and again until Ctrl-C, redrawn on a terminal, readable and parseable without one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from click.testing import CliRunner
from tests.support.router.replies import router_report
from tests.support.services.canned_server import Canned, canned_server
from tests.support.services.command_line import environment
from tests.support.spark.queries import wait_until

from understudy.commands.group import cli
from understudy.terminal.exits import CommandError, ExitCode
from understudy.terminal.pages import Lines
from understudy.terminal.refreshing import watch_pages

REPORT = Canned(json.dumps(router_report()).encode())
BROKEN = Canned(b"oops", 500, "text/plain")
COMMAND = [sys.executable, "-m", "understudy", "lag", "--watch", "0.1", "--url"]


def watched(
    replies: Sequence[Canned], *arguments: str, looks: int, variables: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, output and errors of a watch that Ctrl-C ends after so many looks."""
    with canned_server(replies) as served:
        process = subprocess.Popen(
            [*COMMAND, served.url, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(variables),
        )
        try:
            wait_until(lambda: len(served.requests) >= looks, what="looks at the lag")
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    return process.returncode, output, errors


def test_without_a_terminal_every_look_is_a_table_of_its_own_and_ctrl_c_is_no_error() -> None:
    code, output, errors = watched([REPORT], looks=8)
    assert (code, errors) == (0, "")
    assert output.count("flights: end 420") >= 3
    assert output.count("\x1b") == 0


def test_as_json_every_look_is_one_document_on_one_line() -> None:
    code, output, _ = watched([REPORT], "--json", looks=4)
    documents = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert len(documents) >= 3
    assert all(document == router_report() for document in documents)


def test_a_terminal_is_redrawn_and_given_back_with_the_last_table() -> None:
    code, output, _ = watched([REPORT], looks=6, variables={"TTY_COMPATIBLE": "1", "COLUMNS": "200", "LINES": "60"})
    assert code == 0
    assert output.startswith("\x1b[?25l")
    assert output.rindex("\x1b[?25h") > output.rindex("flights: end 420") > output.index("\x1b[1A")


def test_a_server_that_is_away_for_a_moment_is_reported_and_asked_again() -> None:
    code, output, _ = watched([REPORT, REPORT, BROKEN, REPORT], looks=8)
    assert code == 0
    before, _, after = output.partition("error: the reply is not one of an Understudy server: status 500")
    assert before.count("flights: end 420") == 1
    assert after.count("flights: end 420") >= 1


def test_a_first_look_that_fails_ends_the_command() -> None:
    with canned_server([BROKEN]) as served:
        result = CliRunner().invoke(cli, ["lag", "--watch", "--url", served.url])
    assert (result.exit_code, len(served.requests)) == (ExitCode.REFUSED, 1)


def test_an_invalid_pause_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli, ["lag", "--watch", "0"]).exit_code == ExitCode.USAGE


def test_an_error_between_looks_is_shown_in_place_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    looks: list[bytes | BaseException] = [
        b"first",
        CommandError("away", exit_code=ExitCode.UNREACHABLE),
        b"third",
        KeyboardInterrupt(),
    ]

    def fetch() -> bytes:
        look = looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        return look

    watch_pages(fetch, lambda body: (Lines([body.decode()]),), every_s=0.001, as_json=False)
    assert capsys.readouterr().out.split() == ["first", "error:", "away", "third"]
