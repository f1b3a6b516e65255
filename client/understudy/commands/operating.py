"""`understudy health`, `safe-to-stop` and `drain`: is anything wrong, may a node be stopped, who has its tasks.

A drained node may be stopped one round of gossip after it has no task: by then every router has heard of that. At a
router of a fleet that holds for each of its applications.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import orjson

from understudy.calls.http_client import RemoteServer, path_segment
from understudy.calls.options import ServerOptions, server_options
from understudy.terminal.console import Lines, print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.lag_reports import fleet_health_page, health_line
from understudy.terminal.reports import number_text
from understudy_shared.base.texts import printable

ASK_EVERY_S = 1.0
"""Seconds between two requests of one command."""

MAX_LISTED = 20
"""Number of store partitions of each kind that are listed for people; --json has all that the router lists."""

MAX_NAMED = 3
"""Number of applications that an error names."""

_BAD = {"hurt", "unknown"}

_LOSSES = {
    "last_replica": "no other node has a caught-up replica of",
    "bound": "no other replica is inside the bound of",
    "active": "another node becomes active for",
}
_NO_ACTIVE = "until Redis is back no node is active for"


@click.command(epilog=EXIT_CODES_HELP)
@server_options
def health(*, options: ServerOptions) -> None:
    """Ask a router, or `understudy serve`, whether anything is wrong: who is hurt, why, and what to do.

    It ends with 0 when all is well or only a reserve is gone, and with 3 when readers are hurt or nothing is known. A
    router of a fleet shows each of its applications, the worst first; with --application all of one.

    \b
    Examples:
      understudy health
      understudy health --url router-1:8080 --json | jq -r .headline
    """
    with options.server() as server:
        body = server.get_or_overview("/admin/v1/health")
    report = orjson.loads(body)
    if "applications" in report:
        options.print_report(body, fleet_health_page)
        bad = [each for each in report["applications"] if each["health"]["state"] in _BAD]
        headline = "; ".join(f"{each['application']}: {each['health']['headline']}" for each in bad[:MAX_NAMED])
    else:
        options.print_report(body, lambda report: (Lines(list(health_lines(report)), folds=True, states=True),))
        headline = report["headline"] if report["state"] in _BAD else ""
    if headline:
        raise CommandError(printable(headline), exit_code=ExitCode.REFUSED)


@click.command("safe-to-stop", epilog=EXIT_CODES_HELP)
@click.argument("node_id")
@click.option(
    "--within-s",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds to ask again while it is no, or while no router answers.",
)
@server_options
def safe_to_stop(node_id: str, *, within_s: float, options: ServerOptions) -> None:
    """Ask a router whether the node NODE_ID may be stopped now. It ends with 0 for yes and with 3 for no.

    Yes means that every store partition keeps a caught-up replica within the bound of its store, on a node that
    answered just now; at a router of a fleet, in each of its applications. If it is no, wait, or move what the node has
    with understudy drain NODE_ID.

    \b
    Examples:
      understudy safe-to-stop node-2
      understudy safe-to-stop node-2 --json && kubectl delete pod node-2
      understudy safe-to-stop node-2 --within-s 120 || understudy drain node-2
    """
    with options.server() as server:
        body = _asked_until_yes(server, f"/admin/v1/nodes/{path_segment(node_id)}/safe-to-stop", within_s=within_s)
    options.print_report(body, lambda answer: (Lines(list(safety_lines(answer)), states=True),))
    if not orjson.loads(body)["safe"]:
        fix = f"Wait and ask again; while Redis is there, understudy drain {printable(node_id)} moves its tasks away"
        raise CommandError(f"{printable(node_id)} is not safe to stop", fix=fix, exit_code=ExitCode.REFUSED)


def _asked_until_yes(server: RemoteServer, path: str, *, within_s: float) -> bytes:
    """Return the first yes, else the last answer. Raises CommandError when the last request got no answer."""
    until_s = time.monotonic() + within_s
    while True:
        is_last = time.monotonic() >= until_s
        try:
            body = server.get(path)
            if is_last or orjson.loads(body)["safe"]:
                return body
        except CommandError as refused:
            if is_last or refused.exit_code is ExitCode.USAGE:  # wrong usage is wrong the next time, too
                raise
        time.sleep(ASK_EVERY_S)


def health_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for the whole and for each indicator; below the bad ones their cause and what to do."""
    yield f"{printable(report['application_id'])} as {printable(report.get('router') or report['node'])} sees it"
    yield health_line(report)
    yield ""
    width = max((len(each["name"]) for each in report["indicators"]), default=0)
    states = max((len(each["state"]) for each in report["indicators"]), default=0)
    for each in report["indicators"]:
        yield f"  {each['name']:{width}}  {each['state']:{states}}  {printable(each['symptom'])}".rstrip()
        for label, part in (("cause", "cause"), ("do", "action")):
            if each[part]:
                yield f"      {label:5}  {printable(each[part])}"


def safety_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether a node may be stopped, and what a stop would cost, a line for each kind; of a fleet for each
    application, those first that forbid it.
    """
    yield f"{'yes' if answer['safe'] else 'no'}: {printable(answer['why'])}"
    if "applications" not in answer:
        yield from _cost_lines(answer)
        return
    for name, each in sorted(answer["applications"].items(), key=lambda item: (item[1]["safe"], item[0])):
        yield from (f"{printable(name)}: {line}" for line in _cost_lines(each))


def _cost_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each kind of loss in one application."""
    is_away = answer.get("bus", {}).get("state") == "degraded"
    losses = {**_LOSSES, "active": _NO_ACTIVE} if is_away else _LOSSES
    for kind, text in losses.items():
        lost, count = answer["would_lose"][kind], answer["would_lose"]["counts"][kind]
        if count:
            named = ", ".join(f"{printable(each['store'])} {each['partition']}" for each in lost[:MAX_LISTED])
            more = f" and {count - MAX_LISTED} more" if count > MAX_LISTED else ""
            yield f"{text} {named}{more}"


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
    """Count the tasks of a node in the report; None while that is unknown, 0 for a node that has left."""
    if member is None:
        return 0
    counts = [member[role] for role in _ROLES]
    return None if None in counts else sum(counts)


def has_left(node_id: str, report: Mapping[str, Any]) -> bool:
    """Whether a node that is not live in the report is gone. A router that has just started does not know that: while
    Redis is away, only the nodes are gone that it heard before they died.
    """
    members = report.get("nodes", [])
    if _bus_fault(report):
        return any(each["node_id"] == node_id and each["state"] == "dead" for each in members)
    return report.get("assignment") is not None or any(each["live"] for each in members)


def can_be_taken(node_id: str, members: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any other node of the report may get tasks."""
    return any(
        member["node_id"] != node_id and member["live"] and member["state"] in {"starting", "serving"}
        for member in members
    )


def progress_line(node_id: str, applications: Collection[_Application]) -> str:
    """Say how far the draining is, summed over the applications that still drain."""
    if any(each.is_unheard for each in applications):
        return f"the router does not know yet what {printable(node_id)} holds"
    known = [each.member for each in applications if each.member is not None]
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
    """The live node, by the last report; None: it has left, or the router has not heard it yet."""
    is_unheard: bool = False
    """Whether the router does not know what has become of the node."""
    has_heirs: bool = True
    bus_fault: str = ""
    empty_since: float | None = None

    def look(self, server: RemoteServer, node_id: str) -> bool:
        """Ask for a report. Return whether the node can be stopped for this application."""
        report = orjson.loads(server.get(self.path))
        members: Sequence[Mapping[str, Any]] = report.get("nodes", [])
        self.member = next((each for each in members if each["node_id"] == node_id and each["live"]), None)
        self.is_unheard = self.member is None and not has_left(node_id, report)
        self.has_heirs, self.bus_fault = self.is_unheard or can_be_taken(node_id, members), _bus_fault(report)
        if self.member is None:
            return not self.is_unheard
        # Until the router has heard that it drains, an empty node is one that has nothing yet.
        if tasks_left(self.member) != 0 or self.member["state"] not in {"draining", "leaving"}:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = time.monotonic()
        else:
            return _has_spoken_since(self.empty_since, self.member)
        return False


def _reports_of(answer: Mapping[str, Any]) -> list[_Application]:
    """Return where to read the progress, by the answer to a drain: only a fleet's names applications."""
    names = answer.get("applications")
    if not isinstance(names, Mapping):
        return [_Application("", "/admin/v1/lag")]
    return [_Application(name, f"/admin/v1/applications/{path_segment(name)}/lag") for name in names]


def _wait_until_empty(
    server: RemoteServer, node_id: str, applications: list[_Application], *, within_s: float, as_json: bool
) -> None:
    deadline, last, shown = time.monotonic() + within_s, "", printable(node_id)
    while True:
        waiting = _not_empty_yet(server, node_id, applications, deadline)
        line = progress_line(node_id, waiting or applications)
        holding = [each for each in waiting if each.is_unheard or tasks_left(each.member)]
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


def _not_empty_yet(
    server: RemoteServer, node_id: str, applications: list[_Application], deadline: float
) -> list[_Application]:
    """Return the applications in which the node still has tasks. Without an answer, ask again: a router may restart,
    and the drain continues. Raises the CommandError at the deadline.
    """
    while True:
        try:
            return [each for each in applications if not each.look(server, node_id)]
        except CommandError as refused:
            if refused.exit_code is ExitCode.USAGE or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_EVERY_S)


def _not_drained(what: str, fix: str) -> CommandError:
    return CommandError(what, fix=fix, exit_code=ExitCode.REFUSED)


def _bus_fault(answer: Mapping[str, Any]) -> str:
    """Return why nothing is reassigned, by a report or by the answer to a drain, of one application or the first of
    several; empty while Redis works.
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
