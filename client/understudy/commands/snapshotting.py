"""`understudy snapshot`: leases one version of all stores, for reads that go on for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click
import orjson

from understudy.calls.http_client import path_segment
from understudy.calls.options import ServerOptions, given_bounds, server_options, wait_ms_of
from understudy.terminal.console import Lines, Page, Sheet, print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy.terminal.reports import number_text
from understudy_shared.base.texts import printable
from understudy_shared.reads.tokens import DEFAULT_TTL_S, MAX_TTL_S

_HEADS = ("version", "ends at", "memory", "files", "id")


@click.group(epilog=EXIT_CODES_HELP)
def snapshot() -> None:
    """Lease one version of all stores, so that reads of minutes see one consistent state.

    The token that `create` prints is for --snapshot of any read, at any router or node. Each use renews the lease.

    \b
    Examples:
      token=$(understudy snapshot create)
      understudy scan aircraft --snapshot "$token" > aircraft.jsonl
      understudy scan airport --snapshot "$token" > airport.jsonl
      understudy snapshot release "$token"
    """


@snapshot.command(epilog=EXIT_CODES_HELP)
@click.option(
    "--store", "stores", multiple=True, help="A store that is read. May be given several times.  [default: all]"
)
@click.option("--version", type=click.IntRange(min=0), help="Exactly this version.  [default: the newest]")
@click.option("--at", help="The newest version committed by then: ISO 8601 with an offset, or ms since 1970.")
@click.option("--min-position", help="At least as new as the answer that had this `position`.")
@click.option("--wait-ms", type=click.IntRange(min=0), help="Time to wait for tasks that are behind, in ms.")
@click.option(
    "--ttl-s",
    type=click.IntRange(1, MAX_TTL_S),
    help=f"Seconds from the last use until it ends.  [default: {DEFAULT_TTL_S}]",
)
@server_options
def create(*, stores: tuple[str, ...], options: ServerOptions, **given: Any) -> None:
    """Lease a version, and print its token.

    \b
    Examples:
      understudy snapshot create
      understudy snapshot create --version 418 --ttl-s 300
      understudy snapshot create --store aircraft --json
    """
    asked = given_bounds(given) | ({"stores": stores} if stores else {})
    with options.server() as server:
        body = server.post("/v1/snapshots", orjson.dumps(asked), wait_ms=wait_ms_of({"min_position": "", **asked}))
    if options.as_json:
        print_json(body)
    else:
        click.echo(orjson.loads(body)["snapshot"])


@snapshot.command("list", epilog=EXIT_CODES_HELP)
@server_options
def list_leases(*, options: ServerOptions) -> None:
    """List the leases that nodes hold, those that end first before others, with what the version of each holds.

    \b
    Examples:
      understudy snapshot list
      understudy snapshot list --json
    """
    with options.server() as server:
        body = server.get("/admin/v1/snapshots")
    options.print_report(body, listing_page)


@snapshot.command(epilog=EXIT_CODES_HELP)
@click.argument("snapshot")
@server_options
def release(snapshot: str, *, options: ServerOptions) -> None:
    """End the lease of SNAPSHOT before its time. An unused one ends by itself.

    \b
    Examples:
      understudy snapshot release "$token"
    """
    with options.server() as server:
        server.delete(f"/v1/snapshots/{path_segment(snapshot)}")
    if not options.as_json:
        print_lines(["the lease has ended"])


def listing_page(answer: Mapping[str, Any]) -> Page:
    """Return the leases as a table, and the nodes that did not answer."""
    leases, unanswered = answer["snapshots"], answer["unanswered"]
    missing = [f"no answer of {', '.join(map(printable, unanswered))}"] if unanswered else []
    if not leases:
        return (Lines(["no snapshot lease is held", *missing]),)
    return (Sheet(_HEADS, [tuple(_cells(each)) for each in leases]), Lines(missing))


def _cells(lease: Mapping[str, Any]) -> Iterator[str]:
    yield number_text(lease["version"])
    yield lease["expires_at"]
    yield f"{number_text(lease['extra_bytes'])} B"
    yield f"{number_text(lease['disk_bytes'])} B"
    yield printable(lease["id"])
