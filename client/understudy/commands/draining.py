"""`understudy drain`: moves a node's tasks to others before it is stopped; shows how many it still has.

The node may be stopped one round of gossip after it has no task: by then every router has heard of that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import orjson

from understudy.calls.http_client import Server, path_segment
from understudy.calls.options import ServerOptions, server_options
from understudy.terminal.console import print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.values import number_text
from understudy_shared.base.printable import printable

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
    drained until it is restarted, or until --undo. While no other node can take its tasks, this says so and ends.

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
        if undo:
            _say(f"{printable(node_id)} takes tasks again", as_json=as_json)
        elif no_wait:
            _say(f"{printable(node_id)} is draining", as_json=as_json)
        else:
            _wait_until_empty(server, node_id, within_s=within_s, as_json=as_json)


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


def progress_line(node_id: str, member: Mapping[str, Any] | None) -> str:
    """Say how far the draining is."""
    if member is None:
        return f"{printable(node_id)} has left the cluster"
    if tasks_left(member) == 0:
        return f"{printable(node_id)} holds nothing"
    counts = ", ".join(f"{number_text(member[role])} {role}" for role in _ROLES)
    return f"{printable(node_id)} is {member['state']}: {counts}"


def _wait_until_empty(server: Server, node_id: str, *, within_s: float, as_json: bool) -> None:
    deadline = time.monotonic() + within_s
    last = ""
    empty_since: float | None = None
    for members in _reports(server):
        member = next((each for each in members if each["node_id"] == node_id and each["live"]), None)
        line = progress_line(node_id, member)
        if line != last:
            _say_progress(line, member, as_json=as_json)
            last = line
        if member is None:
            return
        # Until the router has heard that it drains, an empty node is one that has nothing yet.
        if tasks_left(member) != 0 or member["state"] not in {"draining", "leaving"}:
            empty_since = None
        elif empty_since is None:
            empty_since = time.monotonic()
        elif _has_spoken_since(empty_since, member):
            _say(f"{printable(node_id)} can be stopped", as_json=as_json)
            return
        if tasks_left(member) and not can_be_taken(node_id, members):
            fix = f"Start another node, and it goes on by itself; or understudy drain {printable(node_id)} --undo"
            raise _not_drained(f"no other node can take what {printable(node_id)} holds: {line}", fix)
        if time.monotonic() > deadline:
            fix = "It goes on by itself; understudy lag shows who could take its tasks. Other nodes must be running"
            raise _not_drained(f"it was not drained within {within_s:g} s: {line}", fix)


def _not_drained(what: str, fix: str) -> CommandError:
    return CommandError(what, fix=fix, exit_code=ExitCode.REFUSED)


def _has_spoken_since(at_s: float, member: Mapping[str, Any]) -> bool:
    """Whether the router has heard of it since a monotonic time: a round of gossip has passed."""
    age_ms = member["heartbeat_age_ms"]
    return age_ms is not None and age_ms < (time.monotonic() - at_s) * 1000


def _reports(server: Server) -> Iterator[list[Mapping[str, Any]]]:
    """Yield all nodes as the router sees them, again and again."""
    while True:
        yield orjson.loads(server.get("/admin/v1/lag")).get("nodes", [])
        time.sleep(LOOK_EVERY_S)


def _say(line: str, *, as_json: bool) -> None:
    if not as_json:
        print_lines([line])


def _say_progress(line: str, member: Mapping[str, Any] | None, *, as_json: bool) -> None:
    _say(line, as_json=as_json)
    if as_json and member is not None:
        print_json(orjson.dumps(member))
