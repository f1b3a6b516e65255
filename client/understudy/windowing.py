"""`understudy windows`: the windows of a key, or its sessions, in the order of their starts."""

from __future__ import annotations

from typing import Any

import click
import orjson

from understudy.console import print_json
from understudy.exits import EXIT_CODES_HELP
from understudy.http_client import path_segment
from understudy.options import ServerOptions, as_parameters, bound_options, given_bounds, server_options, wait_ms_of
from understudy.reading import KeyCommand, longs_option
from understudy_shared.reads.scan_question import MAX_SCAN_ROWS
from understudy_shared.reads.windows import BYS


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1)
@click.option("--from", help="The beginning of the range, as starts are printed.")
@click.option("--to", help="The end of the range, which is not part of it.")
@click.option(
    "--by", type=click.Choice(BYS), help="Windows that start in the range, or have any moment in it.  [default: start]"
)
@click.option(
    "--include-expired/--no-include-expired",
    default=None,
    help="Whether to show closed windows.  [default: the store's]",
)
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many windows.  [default: all]")
@longs_option
@bound_options
@server_options
def windows(
    store: str, key: tuple[str, ...], *, limit: int | None, longs: str | None, options: ServerOptions, **given: Any
) -> None:
    """Print the windows of one key of STORE, a JSON object per line: a word per key column but the window.

    With --json the pages of the server are printed instead. A key with nulls or empty texts is one JSON array:
    understudy windows STORE '[null]'.

    \b
    Examples:
      understudy windows airport_hours JFK --from 2013-01-01T05:00:00Z --to 2013-01-02T00:00:00Z
      understudy windows visits visitor-7 --by overlap --from 2013-01-01T05:00:00Z
    """
    asked = {**given_bounds(given), **({} if longs is None else {"longs": longs})}
    path = f"/v1/stores/{path_segment(store)}/windows"
    if not key or (len(key) == 1 and key[0].startswith("[")):
        asked["key"] = key[0] if key else "[]"
    else:
        path = "/".join([path, *map(path_segment, key)])
    left = limit
    with options.server() as server:
        while True:
            asked["limit"] = MAX_SCAN_ROWS if left is None else min(left, MAX_SCAN_ROWS)
            body = server.get(path, as_parameters(asked), wait_ms=wait_ms_of(asked))
            page = orjson.loads(body)
            if options.as_json:
                print_json(body)
            else:
                for window in page["windows"]:
                    print_json(orjson.dumps(window))
            left = None if left is None else left - len(page["windows"])
            if page["next_cursor"] is None or left == 0:
                return
            asked["cursor"] = page["next_cursor"]
