"""The demo's processes: tied to it, logged, ended in order, killed when they do not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.services.process_table import is_there
from tests.support.spark.queries import wait_until

from understudy.demo import processes
from understudy.demo.processes import Child, DemoPart, is_running, start, stop, stop_started_by_hand

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
