"""The messages of the demo: sentences for people, or one JSON object per line for programs.

Progress goes to stderr in both; with --json stdout holds nothing but JSON.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click
import orjson
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from understudy.demo.examples import Example, answer_line
from understudy.demo.plan import APPLICATION_ID, Plan, shell_line
from understudy.demo.processes import PROGRAM, Child, command_of
from understudy.terminal.console import print_json, print_lines
from understudy_shared.base.clock import Clock
from understudy_shared.base.printable import printable
from understudy_shared.spark.times import utc_text


@dataclass(frozen=True, slots=True)
class Ready:
    """The demo, running."""

    plan: Plan
    valkey_pid: int
    server: tuple[str, str]
    """The server's name and version: a Redis may be in Valkey's place."""
    children: Sequence[Child]
    answers: Sequence[tuple[Example, Mapping[str, Any]]]
    active_pid: int | None
    """The process of the node that is active for the first example's key."""


class Announcer(Protocol):
    """The announcer of the demo's events."""

    def ready(self, demo: Ready) -> None: ...
    def event(self, event: str, detail: str, **facts: object) -> None: ...


def own_program() -> list[str]:
    """Return how the user reaches this command line: by name, by the path that was typed, or as a module."""
    if shutil.which("understudy"):
        return ["understudy"]
    typed = sys.argv[0]
    return [typed] if Path(typed).name == "understudy" else [*PROGRAM]


class TextAnnouncer:
    """An announcer for people."""

    def __init__(self, program: Sequence[str]) -> None:
        self._program = program

    def ready(self, demo: Ready) -> None:
        print_lines(ready_lines(demo, self._program))
        sys.stdout.flush()

    def event(self, event: str, detail: str, **facts: object) -> None:
        print_lines([detail])
        sys.stdout.flush()


class JsonAnnouncer:
    """An announcer for programs: `ready` once, then events."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def ready(self, demo: Ready) -> None:
        print_json(orjson.dumps({"event": "ready", "at": self._now(), **ready_facts(demo)}))
        sys.stdout.flush()

    def event(self, event: str, detail: str, **facts: object) -> None:
        print_json(orjson.dumps({"event": event, "at": self._now(), "detail": detail, **facts}))
        sys.stdout.flush()

    def _now(self) -> str | None:
        return utc_text(self._clock.wall_us())


def ready_facts(demo: Ready) -> dict[str, object]:
    """Return the line of --json."""
    plan = demo.plan
    name, version = demo.server
    processes: list[dict[str, object]] = [
        {
            "name": name.lower(),
            "role": "valkey",
            "pid": demo.valkey_pid,
            "url": plan.redis,
            "argv": [],
            "version": version,
        }
    ]
    for child in demo.children:
        part = child.part
        facts = {"name": part.name, "role": part.role, "pid": child.pid, "url": part.url, "argv": command_of(part)}
        processes.append(facts)
    return {
        "page": page_url(demo),
        "application_id": APPLICATION_ID,
        "redis": plan.redis,
        "checkpoint": str(plan.checkpoint),
        "folder": str(plan.folder),
        "processes": processes,
    }


def page_url(demo: Ready) -> str:
    """Return the URL of the admin page, at the first router."""
    return f"{demo.plan.routers[0].url}/admin/"


def ready_lines(demo: Ready, program: Sequence[str]) -> list[str]:
    """Say where to watch it, what is running, what was asked and answered, and what to try."""
    plan = demo.plan
    url = plan.routers[0].url
    lines = ["", f"Watch it at {page_url(demo)}", ""]
    lines += ["The demo is running: flights of 2013 flow through Spark, and its state can be asked.", ""]
    name, version = demo.server
    parts = [(name.lower(), plan.redis, f"{demo.valkey_pid}, {name} {version}")]
    parts += [(child.part.name, child.part.url or "-", str(child.pid)) for child in demo.children]
    width = max(len(url) for _, url, _ in parts)
    lines += [f"  {name:10} {url:{width}}  pid {pid}" for name, url, pid in parts]
    lines += [f"  folder     {plan.folder}", "", "Asked just now:", ""]
    for example, answer in demo.answers:
        lines += [f"  {_get(program, example, url)}", f"    {answer_line(answer)}"]
    lines += ["", "Try in another terminal:", ""]
    first = demo.answers[0][0] if demo.answers else None
    if first is not None:
        lines += [
            f"  curl '{url}/v1/stores/{first.store}/keys/{'/'.join(first.words)}'",
            f"  {shell_line(program, ['explain', first.store, *first.words, *_url(url)])}",
        ]
    lines.append(f"  {shell_line(program, ['lag', '--watch', *_url(url)])}")
    if demo.active_pid is not None and first is not None:
        name = next(child.part.name for child in demo.children if child.pid == demo.active_pid)
        lines.append(f"  kill -9 {demo.active_pid}    # {name}, active for this key: ask again, a standby answers")
    return [*lines, "", "Ctrl-C stops everything.", ""]


def died_lines(child: Child, how: str, program: Sequence[str]) -> list[str]:
    """Say that a part ended by itself, or was killed."""
    lines = [f"{child.part.name} (pid {child.pid}) {how}."]
    if "SIGKILL" not in how and how != "ended":
        lines += [f"  | {line}" for line in child.last_lines()]
    if not child.part.is_pipeline:
        lines.append(f"  start it again: {shell_line(program, child.part.arguments)}")
    return lines


class ProgressSteps:
    """A display of the current step: a spinner with the time on a terminal, else a line per step."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(finished_text="✓" if console.encoding.lower().startswith("utf") else "*"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[why]}", markup=False),
            console=console,
        )
        self._is_drawn = console.is_terminal

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the steps while the block runs."""
        if not self._is_drawn:
            yield
            return
        with self._progress:
            yield

    @contextmanager
    def step(self, name: str) -> Iterator[ProgressStep]:
        """Show one step; it is done when the block ends without an error."""
        if not self._is_drawn:
            click.echo(f"{name} ...", err=True)
            yield ProgressStep(None, self._progress)
            click.echo(f"{name}: done", err=True)
            return
        task = self._progress.add_task(name, total=1, why="")
        yield ProgressStep(task, self._progress)
        self._progress.update(task, completed=1, why="")


class ProgressStep:
    """One line of the display."""

    def __init__(self, task: Any, progress: Progress) -> None:
        self._task = task
        self._progress = progress

    def waiting_for(self, why: str) -> None:
        """Show what is still missing."""
        if self._task is not None:
            self._progress.update(self._task, why=printable(why)[:100])


def _get(program: Sequence[str], example: Example, url: str) -> str:
    return shell_line(program, ["get", example.store, *example.words, *_url(url)])


def _url(url: str) -> list[str]:
    """Return the option for the URL; empty for the default."""
    return [] if url == "http://127.0.0.1:8080" else ["--url", url]
