"""`understudy stores`, `types` and `lag`: what can be asked, also as Python classes, and how far behind it is."""

from __future__ import annotations

from typing import Any

import click
import orjson

from understudy.calls.http_client import RemoteServer, path_segment
from understudy.calls.options import ServerOptions, server_options
from understudy.terminal.console import FieldList, Page, print_json, watch_pages
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy.terminal.lag_reports import SORTS, STATES, arranged, fleet_lag_page, lag_page
from understudy.terminal.reports import store_fields, stores_page
from understudy.typed.columns import read_entry
from understudy.typed.models import models_source
from understudy_shared.base.errors import UnderstudyError


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store", required=False)
@server_options
def stores(store: str | None, *, options: ServerOptions) -> None:
    """Show the stores that can be asked, or STORE's key and value columns with types.

    \b
    Examples:
      understudy stores
      understudy stores aircraft
      understudy stores --application orders
      understudy stores --json | jq -r '.stores[].store'
    """
    with options.server() as server:
        body = server.get("/v1/stores" if store is None else f"/v1/stores/{path_segment(store)}")
    options.print_report(body, stores_page if store is None else lambda document: (FieldList(store_fields(document)),))


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
    options: ServerOptions,
) -> None:
    """Show how far every replica is behind the query. A router tells of the whole cluster, a node of what it holds.

    Lag counts versions: committed micro-batches. It is unknown while the end of the commit log is not confirmed. A
    router's report begins with its health; `understudy health` has the details. A router of a fleet shows the sums of
    each application, the worst first; with --application every replica of one.

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
        with options.server() as server:
            if parameters or sort is not None:  # of replicas, which only the report of one application lists
                body = server.get("/admin/v1/lag", parameters)
            else:
                body = server.get_or_overview("/admin/v1/lag")
            return body if options.as_json else with_health(body, server)

    def page(report: dict[str, Any]) -> Page:
        if "applications" in report:
            return fleet_lag_page(report)
        return lag_page(arranged(report, state=state, role=role, sort=sort))

    if every_s is None:
        options.print_report(fetch(), page)
    else:
        watch_pages(fetch, lambda body: page(orjson.loads(body)), every_s=every_s, as_json=options.as_json)


def with_health(body: bytes, server: RemoteServer) -> bytes:
    """Add its health to a router's report; leave it out of a node's, and for callers who may not see it."""
    report = orjson.loads(body)
    if "nodes" not in report:
        return body
    try:
        report["health"] = orjson.loads(server.get("/admin/v1/health"))
    except UnderstudyError:
        return body
    return orjson.dumps(report)


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.option("--pydantic", is_flag=True, help="Print models of pydantic instead of dataclasses.")
@server_options
def types(store: str, *, pydantic: bool, options: ServerOptions) -> None:
    """Print Python classes for the key and the value of STORE, and for its result where that is known.

    A field may be null unless the store says that it never is. With --json, print what the server says about STORE.

    \b
    Examples:
      understudy types aircraft > aircraft_types.py
      understudy types aircraft --pydantic
    """
    with options.server() as server:
        body = server.get(f"/v1/stores/{path_segment(store)}")
    if options.as_json:
        print_json(body)
    else:
        click.echo(models_source(read_entry(orjson.loads(body)), pydantic=pydantic), nl=False)
