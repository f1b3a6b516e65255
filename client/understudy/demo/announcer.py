"""Sentences of the demo for people, or one JSON object per line for programs: what its nodes and routers do.

Progress goes to stderr in both; with --json stdout holds nothing but JSON.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.text import Text

from understudy.calls.http_client import RemoteServer
from understudy.demo.processes import APPLICATION_ID, PROGRAM, Child, DemoPart, Plan, command_of, shell_line
from understudy.terminal.console import print_json, print_lines
from understudy.terminal.reports import shown
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import printable
from understudy_shared.spark.temporal import utc_text

_TIMEOUT_S = 5.0

STORE, KEY = "aircraft", "N14228"
"""The aircraft of the first departure of the year, which is there from the first batch on."""


def answer_line(answer: Mapping[str, Any]) -> str:
    """Print an answer in one line: fields, then its age and the node that answered."""
    by, lag = answer["served_by"], answer["lag"]["offset_lag"]
    age = f"version {answer['version']}, {'lag unknown' if lag is None else f'{lag} behind'}"
    source = f"{printable(by['host'])}:{by['port']}, {by['role']}"
    return f"{_fields(answer)}  ({age}, from {source})"


def _fields(answer: Mapping[str, Any]) -> str:
    if not answer["found"]:
        return "absent"
    fields = answer.get("result") or answer["value"]
    return ", ".join(f"{printable(name)} {shown(value)}" for name, value in fields.items())


# ---- calls


def not_ready(part: DemoPart) -> str:
    """Return why a part is not ready; "" when it is."""
    with RemoteServer(part.url, timeout_s=_TIMEOUT_S) as server:
        reasons = server.not_ready()
    return f"{part.name}: {'; '.join(reasons)}" if reasons else ""


def report_of(routers: Iterable[DemoPart]) -> dict[str, Any] | None:
    """Return the lag report of the first router that gives one."""
    return _first_answer(routers, lambda server: orjson.loads(server.get("/admin/v1/lag")))


def ask(server: RemoteServer) -> dict[str, Any]:
    """Return the answer for the key, found or absent."""
    answer: dict[str, Any] = orjson.loads(server.get(f"/v1/stores/{STORE}/keys/{KEY}"))
    return answer


def answer_and_active(router: DemoPart) -> tuple[dict[str, Any], str]:
    """Return the answer for the key, and the URL of the active node for it; "" without one."""
    with RemoteServer(router.url, timeout_s=_TIMEOUT_S) as server:
        answer = ask(server)
        host = orjson.loads(server.get(f"/v1/stores/{STORE}/metadata/{KEY}"))["active_host"]
    return answer, "" if host is None else f"http://{host['host']}:{host['port']}"


def who_answers(routers: Iterable[DemoPart]) -> dict[str, Any] | None:
    """Return the answer of the first router that gives one."""
    return _first_answer(routers, ask)


def _first_answer(
    routers: Iterable[DemoPart], asked: Callable[[RemoteServer], dict[str, Any]]
) -> dict[str, Any] | None:
    for router in routers:
        try:
            with RemoteServer(router.url, timeout_s=_TIMEOUT_S) as server:
                return asked(server)
        except UnderstudyError:
            continue
    return None


# ---- reports of routers (pure)

Report = Mapping[str, Any]


def changes(before: Report, after: Report) -> list[tuple[str, str]]:
    """List (event, detail) for nodes that joined, left or changed their state, for moved actives, and for the bus."""
    found = [*_node_changes(before, after), *_moved_actives(before, after)]
    if before["bus"]["state"] != after["bus"]["state"]:
        why = f": {after['bus']['why']}" if after["bus"]["why"] else ""
        found.append(("bus", f"the bus is {after['bus']['state']}{why}"))
    return found


def unplaced(report: Report, *, replicas: int) -> str:
    """Return why replicas are not in place: a partition lacks its active, or caught-up replicas; else ""."""
    if not report["stores"]:
        return "no store is known yet"
    lacking = 0
    for store in report["stores"]:
        by_partition: dict[int, list[Mapping[str, Any]]] = {}
        for replica in store["partitions"]:
            by_partition.setdefault(replica["partition"], []).append(replica)
        for held in by_partition.values():
            caught_up = [replica["role"] for replica in held if replica["state"] == "RUNNING"]
            lacking += "active" not in caught_up or len(caught_up) < replicas
    return f"{lacking} store partitions are not in place yet" if lacking else ""


def _node_changes(before: Report, after: Report) -> list[tuple[str, str]]:
    old, new = _node_states(before), _node_states(after)
    found = []
    for node_id in sorted(old.keys() | new.keys()):
        was, now = old.get(node_id, "not there"), new.get(node_id, "not there")
        if was != now:
            found.append(("node", f"{node_id} is {now} (was {was})"))
    return found


def _node_states(report: Report) -> dict[str, str]:
    return {node["node_id"]: node["state"] if node["live"] else "dead" for node in report["nodes"]}


def _moved_actives(before: Report, after: Report) -> list[tuple[str, str]]:
    old, new = _actives(before), _actives(after)
    moves: dict[tuple[str, str], int] = {}
    for partition, now in new.items():
        was = old.get(partition, now)
        if was != now:
            moves[was, now] = moves.get((was, now), 0) + 1
    return [
        ("active", f"{now} took {count} store partition{'s' if count > 1 else ''} over from {was}")
        for (was, now), count in sorted(moves.items())
    ]


def _actives(report: Report) -> dict[tuple[str, int], str]:
    return {
        (store["store"], replica["partition"]): replica["node_id"]
        for store in report["stores"]
        for replica in store["partitions"]
        if replica["role"] == "active"
    }


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
