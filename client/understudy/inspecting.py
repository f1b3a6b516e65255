"""`understudy stores` and `understudy lag`: what can be asked, and how far behind it is."""

from __future__ import annotations

from collections.abc import Mapping

import click
import orjson

from understudy.console import print_fields, print_json, print_lines, print_page, print_table
from understudy.exits import EXIT_CODES_HELP
from understudy.http_client import Server, path_segment
from understudy.lag_reports import lag_page
from understudy.options import server_options
from understudy.pages import Page
from understudy.reading import problems_as_json
from understudy.reports import STORE_COLUMNS, not_served_lines, store_fields, store_row, unnamed_lines
from understudy.watching import watch_pages


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
def lag(store: str | None, *, every_s: float | None, url: str, timeout_s: float, as_json: bool) -> None:
    """Show how far every replica is behind the query. A router tells of the whole cluster, a node of what it holds.

    Lag counts versions: committed micro-batches. It is unknown while the end of the commit log is not confirmed.

    \b
    Examples:
      understudy lag
      understudy lag --watch
      understudy lag --store aircraft --watch 5 --json
      understudy lag --json | jq '[.stores[].partitions[].offset_lag] | max'
    """
    parameters = {} if store is None else {"store": store}

    def fetch() -> bytes:
        return _fetch("/admin/v1/lag", parameters, url=url, timeout_s=timeout_s, as_json=as_json)

    if every_s is not None:
        watch_pages(fetch, _lag_page, every_s=every_s, as_json=as_json)
    elif as_json:
        print_json(fetch())
    else:
        print_page(_lag_page(fetch()))


def _lag_page(body: bytes) -> Page:
    return lag_page(orjson.loads(body))


def _fetch(path: str, parameters: Mapping[str, str], *, url: str, timeout_s: float, as_json: bool) -> bytes:
    with Server(url, timeout_s=timeout_s) as server, problems_as_json(as_json):
        return server.get(path, parameters)
