"""The demo's processes: tied to this one, each with a log of its own; asked to end, and killed after a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from understudy.demo.plan import DemoPart, clean_environment
from understudy_shared.base.printable import printable

PROGRAM = (sys.executable, "-m", "understudy")
PIPELINE = (sys.executable, "-m", "understudy_pipeline.demo")

LAST_LINES = 15
_LAST_BYTES = 16 * 1024
_LOOK_EVERY_S = 0.05
_KILL_LIMIT_S = 10.0

STOP_LIMIT_S = {"router": 10.0, "node": 15.0, "pipeline": 20.0}
"""Seconds to end in good order; a node and a router finish the answers under way."""


class Child:
    """A part that was started."""

    def __init__(self, part: DemoPart, process: subprocess.Popen[bytes], log: Path) -> None:
        self.part = part
        self.process = process
        self.log = log
        self._is_swept = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> str | None:
        """The words for its end; None while it runs."""
        code = self.process.poll()
        return None if code is None else how_it_ended(code)

    def sweep(self) -> None:
        """Kill it and all that it started: a Java that outlived its Python ends with it. Once: ids are used again."""
        if not self._is_swept:
            self._is_swept = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """Return the end of its log."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return [printable(line) for line in lines[-count:]]


def command_of(part: DemoPart) -> list[str]:
    """Return the program of a part and its arguments."""
    return [*PIPELINE] if part.is_pipeline else [*PROGRAM, *part.arguments]


def start(part: DemoPart, folder: Path) -> Child:
    """Start a part. Its log is `logs/{name}.log`, its temporary files are in `tmp`, both under `folder`.

    Called on the main thread: on Linux a child is tied to the thread that started it.
    """
    assert threading.current_thread() is threading.main_thread()
    logs, scratch = folder / "logs", folder / "tmp"
    logs.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    log = logs / f"{part.name}.log"
    scratched = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    environment = {**clean_environment(os.environ), **part.variables, **scratched}
    tied = [sys.executable, "-m", "understudy.demo.tied", str(os.getpid())]
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  # our own command line
            [*tied, *command_of(part)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
            start_new_session=True,  # Ctrl-C on the terminal is for the demo, which stops its parts in order
        )
    return Child(part, process, log)


def is_running(pid: int) -> bool:
    """Whether a child of this process, which other code will collect, still runs."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def how_it_ended(code: int) -> str:
    """Return a return code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "ended" if code == 0 else f"ended with exit code {code}"


def stop_started_by_hand(folder: Path, *, limit_s: float, hurry: Callable[[], bool]) -> list[int]:
    """End processes of this user that keep their data below `folder`: nodes that the user started again by hand.

    Return their ids. Each is held by a descriptor, so that no later process with the same id is hit.
    """
    found: dict[int, int] = {}
    try:
        for pid in _with_data_below(folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                descriptor = os.pidfd_open(pid)
                found[pid] = descriptor
                if pid in _with_data_below(folder):
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        deadline = time.monotonic() + limit_s
        running = set(found.values())
        ends = select.poll()  # unlike `select`, it takes descriptors above 1,023
        for descriptor in running:
            ends.register(descriptor, select.POLLIN)
        while running and time.monotonic() < deadline and not hurry():
            for descriptor, _ in ends.poll(_LOOK_EVERY_S * 1000):
                ends.unregister(descriptor)
                running.discard(descriptor)
        for descriptor in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        for descriptor in found.values():
            os.close(descriptor)
    return sorted(found)


def _with_data_below(folder: Path) -> list[int]:
    """List processes with `--data-dir` below `folder`, by their command lines; empty where there is no /proc."""
    below = os.fsencode(folder) + b"/"
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if any(option == b"--data-dir" and value.startswith(below) for option, value in pairwise(words)):
                found.append(int(entry.parent.name))
    return found


def stop(children: Sequence[Child], *, limit_s: float, hurry: Callable[[], bool]) -> list[Child]:
    """Ask all to end, at once; kill, with all that they started, those that do not by `limit_s` or before `hurry` says.

    Return those that had to be killed.
    """
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + limit_s
    while any(child.process.poll() is None for child in running):
        if time.monotonic() > deadline or hurry():
            break
        time.sleep(_LOOK_EVERY_S)
    slow = [child for child in running if child.process.poll() is None]
    for child in children:
        child.sweep()
    for child in slow:
        child.process.wait(_KILL_LIMIT_S)
    return slow
