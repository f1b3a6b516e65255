"""The demo's life with stand-ins for Spark, nodes and routers: the order, what it says, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.services import demo_parts
from tests.support.services.command_line import environment
from tests.support.services.process_table import is_there
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_ports

LIMIT_S = 60


class RunningDemo:
    """A demo in a process of its own; its lines are read as they come."""

    def __init__(self, folder: Path, arguments: list[str], variables: dict[str, str]) -> None:
        ports = free_ports([0, 0, 0])
        self.ports = ports
        code = (
            "import sys; from understudy.demo import processes, command;"
            f"processes.PROGRAM = (sys.executable, {demo_parts.__file__!r});"
            f"processes.PIPELINE = (*processes.PROGRAM, 'pipeline');"
            f"command.wanted_ports = lambda options: {ports!r};"
            "from understudy.commands.group import cli; cli(prog_name='understudy')"
        )
        shared = {"TMPDIR": str(folder), "DEMO_ACTIVE": str(ports[0])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "demo", "--nodes", "2", "--routers", "1", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment({**shared, **variables}),
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=(stream, into))
            for stream, into in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str) -> None:
        """Wait until the demo has printed this text."""
        wait_until(lambda: text in "".join(self.lines) or self.process.poll() is not None, what=text, limit_s=LIMIT_S)
        assert text in "".join(self.lines), (self.lines, self.errors)

    def end(self, how: signal.Signals | None = signal.SIGINT) -> int:
        """The exit code, once all output was read."""
        if how is signal.SIGINT:  # as a terminal sends it: to everybody in the group
            os.killpg(self.process.pid, how)
        elif how is not None:
            self.process.send_signal(how)
        code = self.process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join(LIMIT_S)
        return code

    def events(self) -> list[dict[str, Any]]:
        """The events that it printed with --json."""
        return [json.loads(line) for line in self.lines]


def _read(stream: Any, into: list[str]) -> None:
    with stream:
        into.extend(stream)


@pytest.fixture
def demos() -> Iterator[list[RunningDemo]]:
    """Demos that a test adds; none outlives it."""
    running: list[RunningDemo] = []
    yield running
    for demo in running:
        demo.process.kill()
        demo.end(None)


def run(
    folder: Path, demos: list[RunningDemo], *arguments: str, variables: dict[str, str] | None = None
) -> RunningDemo:
    """A demo whose temporary files lie in `folder`."""
    demo = RunningDemo(folder, list(arguments), variables or {})
    demos.append(demo)
    return demo


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_nothing_is_left(tmp_path: Path, demos: list[RunningDemo], how: signal.Signals) -> None:
    demo = run(tmp_path, demos, "--json")
    demo.wait_for('"ready"')
    ready = demo.events()[0]
    assert [part["name"] for part in ready["processes"]] == ["valkey", "pipeline", "node-1", "node-2", "router-1"]
    assert Path(ready["folder"]).is_dir()
    assert ready["processes"][0]["version"].startswith("9.")
    pids = [part["pid"] for part in ready["processes"]]
    assert all(map(is_there, pids))
    assert demo.end(how) == 0
    assert not any(map(is_there, pids))
    assert list(tmp_path.iterdir()) == []
    assert [event["event"] for event in demo.events()] == ["ready", "stopping", "stopped"], "none had to be killed"


@pytest.mark.parametrize(("broken", "named"), [("pipeline", "pipeline"), ("router", "router-1")])
def test_a_part_that_dies_during_the_start_ends_the_demo_with_its_last_lines(
    tmp_path: Path, demos: list[RunningDemo], broken: str, named: str
) -> None:
    demo = run(tmp_path, demos, variables={"DEMO_BROKEN": broken})
    assert demo.end(None) == 3
    errors = "".join(demo.errors)
    assert f"error: {named} ended with exit code 3 while the demo was starting" in errors
    assert "  | there is no luck today" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
