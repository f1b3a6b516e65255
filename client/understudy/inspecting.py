"""`understudy stores` and `understudy lag`: what can be asked, and how far behind it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import orjson

from understudy.console import print_fields, print_json, print_lines, print_table
from understudy.exits import EXIT_CODES_HELP
from understudy.http_client import Server, path_segment
from understudy.options import server_options
from understudy.reading import problems_as_json
from understudy.reports import (
    LAG_COLUMNS,
    STORE_COLUMNS,
    lag_footer,
    lag_header,
    lag_rows,
    not_served_lines,
    store_fields,
    store_row,
)


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
        print_lines(not_served_lines(document["not_served"]))
    else:
        print_fields(store_fields(document))


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--store", help="Only this store.")
@server_options
def lag(store: str | None, *, url: str, timeout_s: float, as_json: bool) -> None:
    """Show how far every store partition is behind the query, and what would make the checkpoint better to follow.

    Lag counts versions: committed micro-batches. It is unknown while the end of the commit log is not confirmed.

    \b
    Examples:
      understudy lag
      understudy lag --store aircraft
      understudy lag --json | jq '[.stores[].partitions[].offset_lag] | max'
    """
    body = _fetch(
        "/admin/v1/lag", {} if store is None else {"store": store}, url=url, timeout_s=timeout_s, as_json=as_json
    )
    if as_json:
        print_json(body)
    else:
        _print_lag(orjson.loads(body))


def _print_lag(report: Mapping[str, Any]) -> None:
    print_lines(lag_header(report))
    print_table(LAG_COLUMNS, lag_rows(report))
    print_lines(["", *lag_footer(report)])


def _fetch(path: str, parameters: Mapping[str, str], *, url: str, timeout_s: float, as_json: bool) -> bytes:
    with Server(url, timeout_s=timeout_s) as server, problems_as_json(as_json):
        return server.get(path, parameters)
