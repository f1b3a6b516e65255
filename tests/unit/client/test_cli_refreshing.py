"""`lag --watch`: again and again until Ctrl-C, redrawn on a terminal, readable and parseable without one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.support.router.replies import router_report
from tests.support.services.canned_server import Canned, canned_server
from tests.support.services.command_line import environment
from tests.support.spark.queries import wait_until

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


def test_without_a_terminal_looks_follow_each_other_until_ctrl_c_also_when_a_server_was_away_for_a_moment() -> None:
    code, output, _ = watched([REPORT, REPORT, BROKEN, REPORT], looks=8)
    assert (code, output.count("\x1b")) == (0, 0)
    before, _, after = output.partition("error: the reply is not one of an Understudy server: status 500")
    assert before.count("flights: end 420") == 1
    assert after.count("flights: end 420") >= 1
