"""`understudy watch` and `understudy changes`: the versions that change keys, or a store, as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click
import orjson

from understudy.calls.http_client import STREAM_TIMEOUT_S, RemoteServer
from understudy.calls.keyed import checked_json
from understudy.calls.options import ServerOptions, json_list, server_options
from understudy.calls.paging import entry_of
from understudy.client.core.changes import ChangesQuestion, ReadingChanges
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.streaming import PATIENCE_S
from understudy.client.core.watches import Watching, WatchQuestion
from understudy.client.driver import Changes, Watch
from understudy.client.results import WatchEvent
from understudy.commands.reading import KeyCommand
from understudy.commands.row_output import (
    ALL_FORMATS,
    TEXT_FORMATS,
    Batched,
    Columned,
    JsonLines,
    RowOutput,
    Rows,
    checked_format,
    format_option,
    item_columns,
)
from understudy.terminal.console import RowProgress, print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.reports import EVENT_HEADS, event_line
from understudy.typed.columns import StoreEntry
from understudy_shared.questions.export.columns import ExportColumn, ExportColumns
from understudy_shared.reads.tokens import POSITION_PREFIX
from understudy_shared.spark.types import BooleanType, IntType, LongType

_WATCH_HEADS = ("event", "version", "committed_at", "found")


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
    help="Begin after this `position` of an event or an answer, or at a time (1m: a minute ago), without a snapshot.",
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
    by one) or `reset` (the query's history was created anew). --from goes on at its `position`: of several keys, some
    events come again. When a server ends, the watch goes on at any that --url names, and nothing comes twice.

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
        watching = Watching(BoundStore(Reader(server.state), store), asked, limit_s)
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


def _shower(form: str, server: RemoteServer, store: str) -> Callable[[WatchEvent[Any]], None]:
    if form == "table":
        print_lines([EVENT_HEADS])
        return lambda event: print_lines([event_line(event)])
    if form == "ndjson":
        return lambda event: print_json(orjson.dumps(_row(event)))
    output = Columned(form, item_columns(entry_of(server, store), _WATCH_HEADS, has_key=True))

    def show(event: WatchEvent[Any]) -> None:
        output.print_rows([_row(event)])
        sys.stdout.flush()

    return show


def _row(event: WatchEvent[Any]) -> Mapping[str, Any]:
    return {"event": event.kind, **event.raw, "position": event.position}


_CHANGE_HEADS = (("version", LongType()), ("partition", IntType()), ("found", BooleanType()))
_HELD = 1000
"""Number of changes that are printed together."""


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.option("--from", "begins", required=True, help="The first version; or a time: 1m (ago), or ISO 8601.")
@click.option("--to", "last", type=click.IntRange(min=1), help="The last version.  [default: the newest]")
@click.option("--prefix", help="Only keys whose first columns have these values, as JSON: '[\"UA\"]'.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition of the store.")
@click.option("--fields", help="The value and result columns to show, with commas between them.")
@click.option("--versions", is_flag=True, help="Print, too, when all changes of a version have come.")
@click.option(
    "--patience-s", type=click.FloatRange(min=0, min_open=True), default=PATIENCE_S, show_default=True,
    help="Seconds for which no server may be able to go on.",
)  # fmt: skip
@format_option(ALL_FORMATS, what="changes")
@server_options
def changes(
    store: str,
    *,
    begins: str,
    last: int | None,
    prefix: str | None,
    partition: int | None,
    fields: str | None,
    versions: bool,
    patience_s: float,
    form: str | None,
    options: ServerOptions,
) -> None:
    """Print what each version of STORE put or deleted, version after version, both ends of the range included.

    `event` is `value` (put, maybe an equal value) or `deleted`. When a server ends, another that --url names goes on,
    and nothing comes twice. Exit code 0 says that all changes were printed.

    \b
    Examples:
      understudy changes aircraft --from 419
      understudy changes aircraft --from 1m --format table
      understudy changes aircraft --from 419 --to 430 --format parquet > changes.parquet
      understudy changes aircraft --from 419 --prefix '["N14228"]' --format table
      understudy changes aircraft --from 419 --versions | jq -r 'select(.event == "version") | .position'
    """
    form = checked_format(form, as_json=options.as_json)
    if versions and form not in ("ndjson", "table"):
        raise click.UsageError(f"--versions is for ndjson and table, not for {form}")
    first = int(begins) if begins.isascii() and begins.isdigit() else None
    columns = None if fields is None else fields.split(",")
    asked = ChangesQuestion(
        first,
        last,
        {
            "prefix": None if prefix is None else json_list(prefix, "--prefix", "'[\"UA\"]'"),
            "partition": partition,
            "fields": columns,
            "versions": True,
            "patience": patience_s,
        },
        begins if first is None else None,
    )
    limit_s = max(options.timeout_s, STREAM_TIMEOUT_S)
    with options.server() as server, server.failing_clearly(limit_s), RowProgress() as progress:
        output = _output(form, server, store, columns)
        reading = ReadingChanges(BoundStore(Reader(server.state), store), asked, limit_s)
        with Changes[Any](server.driver.take, reading) as events:
            try:
                _print(events, output, progress, tells_versions=versions)
            except BaseException:
                if form != "parquet" and reading.next_version > (first or 1):  # what came is not in its file yet
                    what = f"All changes up to version {reading.next_version - 1} have come."
                    click.echo(f"{what} Go on with --from {reading.next_version}", err=True)
                raise
        output.finish()


def _print(events: Changes[Any], output: RowOutput, progress: RowProgress, *, tells_versions: bool) -> None:
    """Print changes in chunks; a version's are printed before the next version's come."""
    held: list[Mapping[str, Any]] = []
    for event in events:
        is_version = event.kind == "version"
        if tells_versions or not is_version:
            held.append({"event": event.kind, **event.raw})
        if is_version or len(held) >= _HELD:
            output.print_rows(held)
            progress.add(len(held), event.version)
            held = []


class _ChangeLines(RowOutput):
    """A line for each change, for people."""

    def print_rows(self, rows: Rows) -> None:
        print_lines(event_line(WatchEvent(row["event"], row, None, None)) for row in rows)


def _output(form: str, server: RemoteServer, store: str, fields: list[str] | None) -> RowOutput:
    if form == "ndjson":
        return JsonLines()
    if form == "table":
        print_lines([EVENT_HEADS])
        return _ChangeLines()
    columns = change_columns(entry_of(server, store), fields)
    if form == "csv":
        return Columned(form, {each.name: each.path for each in columns.columns})
    return Batched(form, store, columns)


def change_columns(entry: StoreEntry, fields: list[str] | None) -> ExportColumns:
    """Return the columns of changes: the version, then those of an export. Columns with equal names are qualified by
    their part.
    """
    of_store = entry.exported().columns(None if fields is None else entry.named().by_part(fields))
    heads = [ExportColumn(name, (name,), kind) for name, kind in _CHANGE_HEADS]
    is_flat = len({each.path[-1] for each in (*heads, *of_store.columns)}) == len(heads) + len(of_store.columns)
    named = (replace(each, name=each.path[-1] if is_flat else ".".join(each.path)) for each in of_store.columns)
    return ExportColumns((*heads, *named), is_flat)
