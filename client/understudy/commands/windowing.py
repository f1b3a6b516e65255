"""`understudy windows`: the windows of a key, or its sessions, in the order of their starts."""

from __future__ import annotations

from typing import Any

import click

from understudy.calls.keyed import KeyCall, words_or_json
from understudy.calls.options import (
    ServerOptions,
    as_parameters,
    bound_options,
    given_bounds,
    server_options,
    wait_ms_of,
)
from understudy.calls.paging import entry_of, pages
from understudy.commands.reading import KeyCommand, longs_option
from understudy.commands.row_output import TEXT_FORMATS, checked_format, format_option, output_of, window_columns
from understudy.terminal.console import print_json
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy_shared.questions.lookup.windows import BYS


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
@format_option(TEXT_FORMATS, what="windows")
@longs_option
@bound_options
@server_options
def windows(
    store: str,
    key: tuple[str, ...],
    *,
    limit: int | None,
    form: str | None,
    longs: str | None,
    options: ServerOptions,
    **given: Any,
) -> None:
    """Print the windows of one key of STORE, a JSON object per line or in another --format: a word per key column but
    the window.

    With --json the pages of the server are printed instead. A key with nulls or empty texts is one JSON array:
    understudy windows STORE '[null]'.

    \b
    Examples:
      understudy windows airport_hours JFK --from 2013-01-01T05:00:00Z --to 2013-01-02T00:00:00Z
      understudy windows airport_hours JFK --format table --limit 20
      understudy windows visits visitor-7 --by overlap --from 2013-01-01T05:00:00Z
    """
    asked = {**given_bounds(given), **({} if longs is None else {"longs": longs})}
    form = checked_format(form, as_json=options.as_json)
    with options.server() as server:
        output = output_of(form, lambda: window_columns(entry_of(server, store)))

        call = KeyCall(server, store, "windows", words_or_json(key))

        def ask(asked: dict[str, Any]) -> bytes:
            return call.get(as_parameters(asked), wait_ms=wait_ms_of(asked))

        for listed in pages(ask, asked, "windows", limit):
            if options.as_json:
                print_json(listed.body)
            else:
                output.print_rows(listed.items)
        if not options.as_json:
            output.finish()
