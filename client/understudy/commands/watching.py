"""`understudy watch`: the value of a key, or of several, and each version that changes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click
import orjson

from understudy.calls.http_client import STREAM_TIMEOUT_S, Server
from understudy.calls.keyed import checked_json
from understudy.calls.options import ServerOptions, server_options
from understudy.calls.paging import entry_of
from understudy.calls.questions import json_list
from understudy.client.core.reader import Reader, StoreReader
from understudy.client.core.streaming import PATIENCE_S
from understudy.client.core.watches import Watching, WatchQuestion
from understudy.client.events import WatchEvent
from understudy.client.watch import Watch
from understudy.commands.reading import KeyCommand
from understudy.commands.row_output import TEXT_FORMATS, Columned, checked_format, format_option, item_columns
from understudy.terminal.console import print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.reports import EVENT_HEADS, event_line
from understudy_shared.reads.position import PREFIX as POSITION_PREFIX

_HEADS = ("event", "version", "committed_at", "found")


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1)
@click.option(
    "--key", "json_keys", metavar="JSON", multiple=True,
    help="A key in the exact form, instead of words. May be given several times: up to 1,000 keys are one watch.",
)  # fmt: skip
@click.option("--prefix", help="All keys whose first columns have these values, as JSON, instead of words: '[\"UA\"]'.")
@click.option(
    "--from", "begins", metavar="POSITION|TIME",
    help="Begin behind this `position` of an event or an answer, or at a time (1m: a minute ago), without a snapshot.",
)  # fmt: skip
@click.option("--versions", is_flag=True, help="Print, too, up to which version nothing changed.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many events.  [default: Ctrl-C ends it]")
@click.option(
    "--patience-s", type=click.FloatRange(min=0, min_open=True), default=PATIENCE_S, show_default=True,
    help="Seconds for which no server may be able to go on.",
)  # fmt: skip
@click.option("--include-expired/--no-include-expired", default=None, help="As of get.")
@format_option(TEXT_FORMATS, what="events")
@server_options
def watch(
    store: str,
    key: tuple[str, ...],
    *,
    json_keys: tuple[str, ...],
    prefix: str | None,
    begins: str | None,
    versions: bool,
    limit: int | None,
    patience_s: float,
    include_expired: bool | None,
    form: str | None,
    options: ServerOptions,
) -> None:
    """Print the value of one key of STORE and then each version that changes it, until Ctrl-C: a word per key column.
    With --prefix it is that of all keys with the prefix, up to 1,000 when it begins.

    The event is `snapshot` (the value at the beginning), `value`, `deleted`, `coalesced` (changes that do not come one
    by one) or `reset` (the query's history was created anew). `position` is behind the event: --from goes on there.
    When a server ends, the watch goes on at any that --url names, and nothing comes twice.

    \b
    Examples:
      understudy watch aircraft N14228
      understudy watch aircraft N14228 --format table
      understudy watch aircraft --key '["N14228"]' --key '["N24211"]' | jq .value.flights
      understudy watch aircraft N14228 --limit 1
      understudy watch aircraft N14228 --from 10m
      understudy watch orders --prefix '["tenant-7"]' --format table
    """
    form = checked_format(form, as_json=options.as_json)
    keys = _keys(store, key, json_keys, prefix)
    options_of_watch = {
        "position" if begins is not None and begins.startswith(POSITION_PREFIX) else "since": begins,
        "patience": patience_s,
        "versions": versions,
        "include_expired": include_expired,
        "prefix": None if prefix is None else json_list(prefix, "--prefix", "'[\"UA\"]'"),
    }
    asked = WatchQuestion(keys, options_of_watch, is_many=bool(json_keys))
    limit_s = options.timeout_s if prefix is None else max(options.timeout_s, STREAM_TIMEOUT_S)
    with options.server() as server, server.failing_clearly(limit_s):
        show = _shower(form, server, store)
        watching = Watching(StoreReader(Reader(server.state), store), asked, limit_s)
        with Watch[Any](server.driver.take, watching) as events:
            try:
                for number, event in enumerate(events, 1):
                    show(event)
                    if number == limit:
                        return
            except KeyboardInterrupt:  # the way to end it
                return


def _keys(store: str, key: tuple[str, ...], json_keys: tuple[str, ...], prefix: str | None) -> list[Any]:
    if [bool(key), bool(json_keys), prefix is not None].count(True) != 1:
        raise click.UsageError("give the key's words, --key JSON, or --prefix JSON: one of the three")
    if "" in key:
        fix = f"Use the exact form: understudy watch {store} --key '<JSON array or object>'"
        raise CommandError("a key's words are not empty", fix=fix, exit_code=ExitCode.USAGE)
    return [orjson.loads(checked_json(text, where="--key")) for text in json_keys] if json_keys else [key]


def _shower(form: str, server: Server, store: str) -> Callable[[WatchEvent[Any]], None]:
    if form == "table":
        print_lines([EVENT_HEADS])
        return lambda event: print_lines([event_line(event)])
    if form == "ndjson":
        return lambda event: print_json(orjson.dumps(_row(event)))
    output = Columned(form, item_columns(entry_of(server, store), _HEADS, has_key=True))

    def show(event: WatchEvent[Any]) -> None:
        output.print_rows([_row(event)])
        sys.stdout.flush()

    return show


def _row(event: WatchEvent[Any]) -> Mapping[str, Any]:
    return {"event": event.kind, **event.raw, "position": event.position}
