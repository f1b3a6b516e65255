"""`understudy health` and `understudy safe-to-stop`: is anything wrong, and may this node be stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
import orjson

from understudy.calls.http_client import Server, path_segment
from understudy.calls.options import ServerOptions, server_options
from understudy.terminal.console import Lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.fleet_reports import fleet_health_page
from understudy.terminal.lag_reports import health_line
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
