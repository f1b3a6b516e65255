"""The demo's processes: arguments, addresses, files. Each is tied to this one, asked to end, and killed when late."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from understudy_shared.base.processes import tied_command
from understudy_shared.base.texts import printable

APPLICATION_ID = "flights"

PROGRAM = (sys.executable, "-m", "understudy")
PIPELINE = (sys.executable, "-m", "understudy.demo")

LAST_LINES = 15
_LAST_BYTES = 16 * 1024
_LOOK_EVERY_S = 0.05
_KILL_LIMIT_S = 10.0

STOP_LIMIT_S = {"router": 10.0, "node": 15.0, "pipeline": 20.0}
"""Seconds to end in good order; a node and a router finish the answers under way."""

FIRST_NODE_PORT = 7101
FIRST_ROUTER_PORT = 8080

Role = Literal["valkey", "pipeline", "node", "router"]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The choices of the user. `max_flights` ends the replay early; None replays the whole year."""

    nodes: int = 3
    routers: int = 2
    provider: Literal["rocksdb", "hdfs"] = "rocksdb"
    speed_up: float | None = None
    max_flights: int | None = None


@dataclass(frozen=True, slots=True)
class DemoPart:
    """One process: `arguments` of the command line, the URL where it answers, if it does, and its variables."""

    name: str
    role: Role
    arguments: tuple[str, ...] = ()
    url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_pipeline(self) -> bool:
        """Whether it is the Spark query, which no command runs."""
        return self.role == "pipeline"


@dataclass(frozen=True, slots=True)
class Plan:
    """All processes but Valkey, which is started first: the others need its address."""

    folder: Path
    checkpoint: Path
    redis: str
    pipeline: DemoPart
    nodes: tuple[DemoPart, ...]
    routers: tuple[DemoPart, ...]

    @property
    def parts(self) -> tuple[DemoPart, ...]:
        """In the order of their start; they are stopped in reverse order."""
        return (self.pipeline, *self.nodes, *self.routers)


def wanted_ports(options: DemoOptions) -> list[int]:
    """List the ports that the documentation names, nodes' first."""
    nodes = range(FIRST_NODE_PORT, FIRST_NODE_PORT + options.nodes)
    return [*nodes, *range(FIRST_ROUTER_PORT, FIRST_ROUTER_PORT + options.routers)]


def make_plan(options: DemoOptions, *, folder: Path, redis: str, ports: Sequence[int]) -> Plan:
    """Plan the processes; `ports` are the nodes', then the routers'."""
    checkpoint = folder / "checkpoint"
    node_ports, router_ports = ports[: options.nodes], ports[options.nodes :]
    return Plan(
        folder,
        checkpoint,
        redis,
        DemoPart("pipeline", "pipeline", variables=pipeline_variables(options, checkpoint, redis)),
        tuple(_node(number, port, folder, checkpoint, redis) for number, port in enumerate(node_ports, 1)),
        tuple(_router(number, port, folder, redis) for number, port in enumerate(router_ports, 1)),
    )


def pipeline_variables(options: DemoOptions, checkpoint: Path, redis: str) -> dict[str, str]:
    """Return the settings of the pipeline as variables; without those that the user did not choose."""
    settings: dict[str, object] = {
        "checkpoint": checkpoint,
        "redis": redis,
        "application_id": APPLICATION_ID,
        "provider": options.provider,
        "speed_up": options.speed_up,
        "max_flights": options.max_flights,
    }
    return {f"UNDERSTUDY_{name.upper()}": str(value) for name, value in settings.items() if value is not None}


def shell_line(program: Sequence[str], arguments: Sequence[str]) -> str:
    """Print a command as it is typed."""
    return shlex.join([*program, *arguments])


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the parts: settings of the user's own nodes and routers are not the demo's."""
    return {name: value for name, value in environ.items() if not name.startswith("UNDERSTUDY_")}


def _node(number: int, port: int, folder: Path, checkpoint: Path, redis: str) -> DemoPart:
    name = f"node-{number}"
    identity = ("--application-id", APPLICATION_ID, "--node-id", name, "--port", str(port))
    arguments = ("node", str(checkpoint), "--redis", redis, *identity, "--data-dir", str(folder / name))
    return DemoPart(name, "node", arguments, f"http://127.0.0.1:{port}")


def _router(number: int, port: int, folder: Path, redis: str) -> DemoPart:
    name = f"router-{number}"
    identity = ("--application-id", APPLICATION_ID, "--redis", redis, "--router-id", name, "--port", str(port))
    return DemoPart(name, "router", ("router", *identity, "--data-dir", str(folder / name)), f"http://127.0.0.1:{port}")


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
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  # our own command line
            tied_command(*command_of(part)),
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
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "ended" if code == 0 else f"ended with exit code {code}"


def stop_started_by_hand(folder: Path, *, limit_s: float, hurry: Callable[[], bool]) -> list[int]:
    """End processes of this user that keep their data below `folder`: nodes that the user started again by hand.

    Return their ids.
    """
    found = _signal_all(folder, signal.SIGTERM)
    deadline = time.monotonic() + limit_s
    while _with_data_below(folder) and time.monotonic() < deadline and not hurry():
        time.sleep(_LOOK_EVERY_S)
    _signal_all(folder, signal.SIGKILL)
    return found


def _signal_all(folder: Path, number: signal.Signals) -> list[int]:
    found = []
    for pid in sorted(_with_data_below(folder)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            found.append(pid)
    return found


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
