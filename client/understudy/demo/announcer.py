"""The messages of the demo: sentences for people, or one JSON object per line for programs.

Progress goes to stderr in both; with --json stdout holds nothing but JSON.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.text import Text

from understudy.demo.asking import KEY, STORE, answer_line
from understudy.demo.processes import APPLICATION_ID, PROGRAM, Child, Plan, command_of, shell_line
from understudy.terminal.console import print_json, print_lines
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.texts import printable
from understudy_shared.spark.times import utc_text


@dataclass(frozen=True, slots=True)
class Ready:
    """The demo, running."""

    plan: Plan
    valkey_pid: int
    server: tuple[str, str]
    """The server's name and version: a Redis may be in Valkey's place."""
    children: Sequence[Child]
    answer: Mapping[str, Any]
    active_pid: int | None
    """The process of the node that is active for the key."""

    @property
    def page(self) -> str:
        """The URL of the admin page, at the first router."""
        return f"{self.plan.routers[0].url}/admin/"


def own_program() -> list[str]:
    """Return how the user reaches this command line: by name, by the path that was typed, or as a module."""
    if shutil.which("understudy"):
        return ["understudy"]
    typed = sys.argv[0]
    return [typed] if Path(typed).name == "understudy" else [*PROGRAM]


class Announcer:
    """The announcer of the demo's events. `program` is how the user reaches the command line."""

    def __init__(self, program: Sequence[str], *, as_json: bool) -> None:
        self.program = program
        self._as_json = as_json

    def ready(self, demo: Ready) -> None:
        if self._as_json:
            self._print_json("ready", ready_facts(demo))
        else:
            print_lines(ready_lines(demo, self.program))
            sys.stdout.flush()

    def event(self, event: str, detail: str, **facts: object) -> None:
        if self._as_json:
            self._print_json(event, {"detail": detail, **facts})
        else:
            print_lines([detail])
            sys.stdout.flush()

    def _print_json(self, event: str, facts: Mapping[str, object]) -> None:
        print_json(orjson.dumps({"event": event, "at": utc_text(SystemClock().wall_us()), **facts}))
        sys.stdout.flush()


def ready_facts(demo: Ready) -> dict[str, object]:
    """Return the line of --json."""
    plan = demo.plan
    name, version = demo.server
    valkey = {"name": name.lower(), "role": "valkey", "pid": demo.valkey_pid, "url": plan.redis, "argv": []}
    processes: list[dict[str, object]] = [{**valkey, "version": version}]
    for child in demo.children:
        part = child.part
        facts = {"name": part.name, "role": part.role, "pid": child.pid, "url": part.url, "argv": command_of(part)}
        processes.append(facts)
    return {
        "page": demo.page,
        "application_id": APPLICATION_ID,
        "redis": plan.redis,
        "checkpoint": str(plan.checkpoint),
        "folder": str(plan.folder),
        "processes": processes,
    }


def ready_lines(demo: Ready, program: Sequence[str]) -> list[str]:
    """Say where to watch it, what is running, what was asked and answered, and what to try."""
    plan = demo.plan
    url = plan.routers[0].url
    option = [] if url == "http://127.0.0.1:8080" else ["--url", url]
    lines = ["", f"Watch it at {demo.page}", ""]
    lines += ["The demo is running: flights of 2013 flow through Spark, and its state can be asked.", ""]
    name, version = demo.server
    parts = [(name.lower(), plan.redis, f"{demo.valkey_pid}, {name} {version}")]
    parts += [(child.part.name, child.part.url or "-", str(child.pid)) for child in demo.children]
    width = max(len(url) for _, url, _ in parts)
    lines += [f"  {name:10} {url:{width}}  pid {pid}" for name, url, pid in parts]
    lines += [f"  folder     {plan.folder}", "", "Asked just now:", ""]
    busiest = ["--order", "result.flights", "--reverse", "--limit", "3", "--fields", "result.flights"]
    lines += [
        f"  {shell_line(program, ['get', STORE, KEY, *option])}",
        f"    {answer_line(demo.answer)}",
        "",
        "Try in another terminal:",
        "",
        f"  curl '{url}/v1/stores/{STORE}/keys/{KEY}'",
        f"  {shell_line(program, ['explain', STORE, KEY, *option])}",
        f"  {shell_line(program, ['scan', STORE, *busiest, *option])}",
        f"  {shell_line(program, ['lag', '--watch', *option])}",
    ]
    if demo.active_pid is not None:
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


@contextmanager
def step(name: str) -> Iterator[Callable[[str], None]]:
    """Show one step of the start; it is done when the block ends without an error. The function shows what is missing.

    A spinner on a terminal, else a line when it begins and one when it is done.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        click.echo(f"{name} ...", err=True)
        yield lambda _: None
        click.echo(f"{name}: done", err=True)
        return
    with console.status(Text(name)) as status:
        yield lambda why: status.update(Text(f"{name}  {printable(why)[:100]}"))
    console.print(Text(f"{'✓' if console.encoding.lower().startswith('utf') else '*'} {name}"))
