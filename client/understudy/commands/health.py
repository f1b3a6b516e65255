"""`understudy health` and `understudy safe-to-stop`: is anything wrong, and may this node be stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
import orjson

from understudy.calls.http_client import Server, path_segment
from understudy.calls.options import ServerOptions, server_options
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.health_line import health_line
from understudy.terminal.pages import Lines
from understudy_shared.base.printable import printable

ASK_EVERY_S = 1.0
"""Seconds between two requests of one command."""

MAX_LISTED = 20
"""Number of store partitions of each kind that are listed for people; --json has all that the router lists."""

_LOSSES = {
    "last_replica": "no other node has a caught-up replica of",
    "bound": "no other replica is inside the bound of",
    "active": "another node becomes active for",
}


@click.command(epilog=EXIT_CODES_HELP)
@server_options
def health(*, options: ServerOptions) -> None:
    """Ask a router, or `understudy serve`, whether anything is wrong: who is hurt, why, and what to do.

    It ends with 0 when all is well or only a reserve is gone, and with 3 when readers are hurt or nothing is known.

    \b
    Examples:
      understudy health
      understudy health --url router-1:8080 --json | jq -r .headline
    """
    with options.server() as server:
        body = server.get("/admin/v1/health")
    options.print_report(body, lambda report: (Lines(list(health_lines(report)), folds=True),))
    report = orjson.loads(body)
    if report["state"] in {"hurt", "unknown"}:
        raise CommandError(printable(str(report["headline"])), exit_code=ExitCode.REFUSED)


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

    Yes means that every store partition keeps a caught-up replica within the bound of its store. If it is no, wait, or
    move what the node has with understudy drain NODE_ID.

    \b
    Examples:
      understudy safe-to-stop node-2
      understudy safe-to-stop node-2 --json && kubectl delete pod node-2
      understudy safe-to-stop node-2 --within-s 120 || understudy drain node-2
    """
    with options.server() as server:
        body = _asked_until_yes(server, f"/admin/v1/nodes/{path_segment(node_id)}/safe-to-stop", within_s=within_s)
    options.print_report(body, lambda answer: (Lines(list(safety_lines(answer))),))
    if not orjson.loads(body)["safe"]:
        fix = f"Wait and ask again, or: understudy drain {printable(node_id)}"
        raise CommandError(f"{printable(node_id)} is not safe to stop", fix=fix, exit_code=ExitCode.REFUSED)


def _asked_until_yes(server: Server, path: str, *, within_s: float) -> bytes:
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
    """Yield the line of the whole; a line for each indicator; below the bad ones their cause and what to do."""
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
    """Yield whether a node may be stopped, and what a stop would cost, a line for each kind."""
    yield f"{'yes' if answer['safe'] else 'no'}: {printable(answer['why'])}"
    for kind, text in _LOSSES.items():
        lost, count = answer["would_lose"][kind], answer["would_lose"]["counts"][kind]
        if count:
            named = ", ".join(f"{printable(each['store'])} {each['partition']}" for each in lost[:MAX_LISTED])
            more = f" and {count - MAX_LISTED} more" if count > MAX_LISTED else ""
            yield f"{text} {named}{more}"
