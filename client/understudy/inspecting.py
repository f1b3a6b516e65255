"""`understudy stores` and `understudy lag`: what can be asked, and how far behind it is."""

from __future__ import annotations

from collections.abc import Mapping

import click
import orjson

from understudy.console import print_fields, print_json, print_lines, print_page, print_table
from understudy.exits import EXIT_CODES_HELP
from understudy.http_client import Server, path_segment
from understudy.lag_reports import SORTS, STATES, arranged, lag_page
from understudy.options import server_options
from understudy.pages import Page
from understudy.reading import problems_as_json
from understudy.reports import STORE_COLUMNS, not_served_lines, store_fields, store_row, unnamed_lines
from understudy.watching import watch_pages
from understudy_shared.base.errors import UnderstudyError


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store", required=False)
@server_options
def stores(store: str | None, *, url: str, timeout_s: float, as_json: bool) -> None:
    """Show the stores that can be asked, or STORE's key and value columns with types.

    \b
    Examples:
      understudy stores
      understudy stores aircraft
      understudy stores --json | jq -r '.stores[].store'
    """
    path = "/v1/stores" if store is None else f"/v1/stores/{path_segment(store)}"
    body = _fetch(path, {}, url=url, timeout_s=timeout_s, as_json=as_json)
    if as_json:
        print_json(body)
        return
    document = orjson.loads(body)
    if store is None:
        print_table(STORE_COLUMNS, [store_row(described) for described in document["stores"]])
        print_lines(unnamed_lines(document["stores"]))
        print_lines(not_served_lines(document["not_served"]))
    else:
        print_fields(store_fields(document))


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--store", help="Only this store.")
@click.option("--node", help="Only replicas of this node; of a router.")
@click.option("--state", type=click.Choice(STATES, case_sensitive=False), help="Only replicas in this state.")
@click.option("--role", type=click.Choice(["active", "standby", "warmup"]), help="Only replicas in this role.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    help="Order of the replicas; - before it: descending. Unknown is worse than any number.  [default: as stored]",
)
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=1.0,
    metavar="[SECONDS]",
    help="Show it again every second, or every SECONDS, until Ctrl-C.",
)
@server_options
def lag(
    *,
    store: str | None,
    node: str | None,
    state: str | None,
    role: str | None,
    sort: str | None,
    every_s: float | None,
    url: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show how far every replica is behind the query. A router tells of the whole cluster, a node of what it holds.

    Lag counts versions: committed micro-batches. It is unknown while the end of the commit log is not confirmed. A
    router's report begins with its health; `understudy health` has the details.

    \b
    Examples:
      understudy lag
      understudy lag --watch --sort -lag
      understudy lag --state RESTORING --node node-2
      understudy lag --store aircraft --watch 5 --json
      understudy lag --json | jq '[.stores[].partitions[].offset_lag] | max'
    """
    given = {"store": store, "node": node, "state": state, "role": role}
    parameters = {name: value for name, value in given.items() if value is not None}

    def fetch() -> bytes:
        with Server(url, timeout_s=timeout_s) as server, problems_as_json(as_json):
            body = server.get("/admin/v1/lag", parameters)
            return body if as_json else with_health(body, server)

    def page(body: bytes) -> Page:
        return lag_page(arranged(orjson.loads(body), state=state, role=role, sort=sort))

    if every_s is not None:
        watch_pages(fetch, page, every_s=every_s, as_json=as_json)
    elif as_json:
        print_json(fetch())
    else:
        print_page(page(fetch()))


def with_health(body: bytes, server: Server) -> bytes:
    """Add its health to a router's report; leave the report as it is of a node, or without the right to see health."""
    report = orjson.loads(body)
    if "nodes" not in report:
        return body
    try:
        report["health"] = orjson.loads(server.get("/admin/v1/health"))
    except UnderstudyError:
        return body
    return orjson.dumps(report)


def _fetch(path: str, parameters: Mapping[str, str], *, url: str, timeout_s: float, as_json: bool) -> bytes:
    with Server(url, timeout_s=timeout_s) as server, problems_as_json(as_json):
        return server.get(path, parameters)
