"""`understudy drain`: moves a node's tasks to others before it is stopped; shows how many it still has.

The node may be stopped one round of gossip after it has no task: by then every router has heard of that. At a router of
a fleet that holds for each of its applications.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import orjson

from understudy.calls.http_client import Server, path_segment
from understudy.calls.options import ServerOptions, server_options
from understudy.terminal.console import print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.values import number_text
from understudy_shared.base.texts import printable

LOOK_EVERY_S = 0.25
_ROLES = ("active", "standby", "warmup")


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("node_id")
@click.option("--undo", is_flag=True, help="Let the node take tasks again.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the node holds nothing.")
@click.option(
    "--within-s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds to wait until the node holds nothing.",
)
@server_options
def drain(node_id: str, *, undo: bool, no_wait: bool, within_s: float, options: ServerOptions) -> None:
    """Ask a router to move all tasks of the node NODE_ID to other nodes, and wait until it holds no task.

    The node answers meanwhile, and nothing is lost: it can be stopped afterwards without a reader noticing. It stays
    drained until it is restarted, or until --undo. While no other node can take its tasks, or Redis is away, this says
    so and ends. A router of a fleet drains the node in all its applications, or in that of --application.

    \b
    Examples:
      understudy drain node-2
      understudy drain node-2 --undo
      understudy drain node-2 --no-wait --json
    """
    path = f"/admin/v1/nodes/{path_segment(node_id)}/drain"
    as_json = options.as_json
    with options.server() as server:
        body = server.post(path, orjson.dumps({"drain": not undo}))
        if as_json:
            print_json(body)
        answer = orjson.loads(body)
        if undo:
            _say(f"{printable(node_id)} takes tasks again", as_json=as_json)
        elif no_wait:
            why = _bus_fault(answer)
            waits = f"; no task moves until Redis is back: {printable(why)}" if why else ""
            _say(f"{printable(node_id)} is draining{waits}", as_json=as_json)
        else:
            _wait_until_empty(server, node_id, _reports_of(answer), within_s=within_s, as_json=as_json)


def tasks_left(member: Mapping[str, Any] | None) -> int | None:
    """Count the tasks that a node of the report has; None while that is not known, 0 for a node that has left."""
    if member is None:
        return 0
    counts = [member[role] for role in _ROLES]
    return None if None in counts else sum(counts)


def can_be_taken(node_id: str, members: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any other node of the report may get tasks."""
    return any(
        member["node_id"] != node_id and member["live"] and member["state"] in {"starting", "serving"}
        for member in members
    )


def progress_line(node_id: str, members: Collection[Mapping[str, Any] | None]) -> str:
    """Say how far the draining is, summed over the applications in which it is not over."""
    known = [member for member in members if member is not None]
    if not known:
        return f"{printable(node_id)} has left the cluster"
    if not any(tasks_left(member) != 0 for member in known):
        return f"{printable(node_id)} holds nothing"
    sums = {role: [member[role] for member in known] for role in _ROLES}
    counts = ", ".join(f"{number_text(None if None in each else sum(each))} {role}" for role, each in sums.items())
    states = " and ".join(sorted({member["state"] for member in known}))
    within = f" in {len(known)} applications" if len(known) > 1 else ""
    return f"{printable(node_id)} is {states}: {counts}{within}"


@dataclass(slots=True)
class _Application:
    """The draining of a node in one application, which has no name at a router of one."""

    name: str
    path: str
    """The path of its lag report."""
    member: Mapping[str, Any] | None = None
    """The node, by the last report; None: it has left."""
    has_heirs: bool = True
    bus_fault: str = ""
    empty_since: float | None = None

    def look(self, server: Server, node_id: str) -> bool:
        """Ask for a report. Return whether the node can be stopped as far as this application goes."""
        report = orjson.loads(server.get(self.path))
        members: Sequence[Mapping[str, Any]] = report.get("nodes", [])
        self.member = next((each for each in members if each["node_id"] == node_id and each["live"]), None)
        self.has_heirs, self.bus_fault = can_be_taken(node_id, members), _bus_fault(report)
        if self.member is None:
            return True
        # Until the router has heard that it drains, an empty node is one that has nothing yet.
        if tasks_left(self.member) != 0 or self.member["state"] not in {"draining", "leaving"}:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = time.monotonic()
        else:
            return _has_spoken_since(self.empty_since, self.member)
        return False


def _reports_of(answer: Mapping[str, Any]) -> list[_Application]:
    """Return where the progress is read, by the answer to a drain: only that of a fleet names applications."""
    names = answer.get("applications")
    if not isinstance(names, Mapping):
        return [_Application("", "/admin/v1/lag")]
    return [_Application(name, f"/admin/v1/applications/{path_segment(name)}/lag") for name in names]


def _wait_until_empty(
    server: Server, node_id: str, applications: list[_Application], *, within_s: float, as_json: bool
) -> None:
    deadline, last, shown = time.monotonic() + within_s, "", printable(node_id)
    while True:
        waiting = [each for each in applications if not each.look(server, node_id)]
        line = progress_line(node_id, [each.member for each in (waiting or applications)])
        holding = [each for each in waiting if tasks_left(each.member)]
        away = next((each.bus_fault for each in holding if each.bus_fault), "")
        if away:
            if not last:
                fix = f"Bring Redis back, and it goes on by itself; or understudy drain {shown} --undo"
                raise _not_drained(f"no task moves until Redis is back: {printable(away)}; {line}", fix)
            line += "; no task moves until Redis is back"
        if line != last:
            _say(line, as_json=as_json)
            if as_json:
                _print_members(waiting or applications)
            last = line
        if not waiting:
            if any(each.member is not None for each in applications):
                _say(f"{shown} can be stopped", as_json=as_json)
            return
        applications = waiting
        if holding and len(holding) == len(waiting) and not any(each.has_heirs for each in holding):
            named = f" of {', '.join(printable(each.name) for each in holding)}" if holding[0].name else ""
            fix = f"Start another node, and it goes on by itself; or understudy drain {shown} --undo"
            raise _not_drained(f"no other node can take what {shown} holds{named}: {line}", fix)
        if time.monotonic() > deadline:
            fix = "It goes on by itself; understudy lag shows who could take its tasks. Other nodes must be running"
            raise _not_drained(f"it was not drained within {within_s:g} s: {line}", fix)
        time.sleep(LOOK_EVERY_S)


def _not_drained(what: str, fix: str) -> CommandError:
    return CommandError(what, fix=fix, exit_code=ExitCode.REFUSED)


def _bus_fault(answer: Mapping[str, Any]) -> str:
    """Return why nothing is reassigned, by a report or by the answer to a drain, of one application or the first of
    several; empty while Redis carries what the nodes say.
    """
    applications = answer.get("applications")
    of_one = next(iter(applications.values()), {}) if isinstance(applications, Mapping) else answer
    bus = of_one.get("bus", {})
    return str(bus["why"]) if bus.get("state") == "degraded" else ""


def _has_spoken_since(at_s: float, member: Mapping[str, Any]) -> bool:
    """Whether the router has heard of it since a monotonic time: a round of gossip has passed."""
    age_ms = member["heartbeat_age_ms"]
    return age_ms is not None and age_ms < (time.monotonic() - at_s) * 1000


def _say(line: str, *, as_json: bool) -> None:
    if not as_json:
        print_lines([line])


def _print_members(applications: Collection[_Application]) -> None:
    for each in applications:
        if each.member is not None:
            print_json(orjson.dumps({**({"application": each.name} if each.name else {}), **each.member}))
