"""`understudy changes`: what each version of a store put or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from understudy.calls.http_client import STREAM_TIMEOUT_S, Server
from understudy.calls.options import ServerOptions, server_options
from understudy.calls.paging import entry_of
from understudy.calls.questions import json_list
from understudy.client.core.changes import ChangesQuestion, ReadingChanges
from understudy.client.core.reader import Reader, StoreReader
from understudy.client.core.streaming import PATIENCE_S
from understudy.client.events import WatchEvent
from understudy.client.watch import Changes
from understudy.commands.row_output import (
    ALL_FORMATS,
    Batched,
    Columned,
    JsonLines,
    RowOutput,
    Rows,
    checked_format,
    format_option,
)
from understudy.terminal.console import print_lines
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy.terminal.refreshing import RowProgress
from understudy.terminal.reports import EVENT_HEADS, event_line
from understudy.typed.columns import StoreEntry
from understudy_shared.questions.export.columns import ExportColumn, ExportColumns
from understudy_shared.spark.types import BooleanType, IntType, LongType

_HEADS = (("version", LongType()), ("partition", IntType()), ("found", BooleanType()))
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
        reading = ReadingChanges(StoreReader(Reader(server.state), store), asked, limit_s)
        with Changes[Any](server.driver.take, reading) as events:
            try:
                _print(events, output, progress, tells_versions=versions)
            except BaseException:
                if reading.next_version > (first or 1):
                    what = f"All changes up to version {reading.next_version - 1} have come."
                    click.echo(f"{what} Go on with --from {reading.next_version}", err=True)
                raise
        output.finish()


def _print(events: Changes[Any], output: RowOutput, progress: RowProgress, *, tells_versions: bool) -> None:
    """Print changes, some at a time, and those of a version before the next one's come."""
    held: list[Mapping[str, Any]] = []
    for event in events:
        is_version = event.kind == "version"
        if tells_versions or not is_version:
            held.append({"event": event.kind, **event.raw})
        if is_version or len(held) >= _HELD:
            output.print_rows(held)
            progress.add(len(held), event.version)
            held = []


class _Lines:
    """A line for each change, for people."""

    def print_rows(self, rows: Rows) -> None:
        """See `RowOutput`."""
        print_lines(event_line(WatchEvent(row["event"], row, None, None)) for row in rows)

    def finish(self) -> None:
        """See `RowOutput`."""


def _output(form: str, server: Server, store: str, fields: list[str] | None) -> RowOutput:
    if form == "ndjson":
        return JsonLines()
    if form == "table":
        print_lines([EVENT_HEADS])
        return _Lines()
    columns = change_columns(entry_of(server, store), fields)
    if form == "csv":
        return Columned(form, {each.name: each.path for each in columns.columns})
    return Batched(form, store, columns)


def change_columns(entry: StoreEntry, fields: list[str] | None) -> ExportColumns:
    """Return the columns of changes: those of an export behind the version. Columns of the store that have equal
    names have their part before them.
    """
    of_store = entry.exported().columns(None if fields is None else entry.named().by_part(fields))
    heads = [ExportColumn(name, (name,), kind) for name, kind in _HEADS]
    is_flat = len({each.path[-1] for each in (*heads, *of_store.columns)}) == len(heads) + len(of_store.columns)
    named = (replace(each, name=each.path[-1] if is_flat else ".".join(each.path)) for each in of_store.columns)
    return ExportColumns((*heads, *named), is_flat)
