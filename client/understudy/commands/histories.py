"""`understudy history`: each version that changed a key."""

from __future__ import annotations

from typing import Any

import click

from understudy.calls.keyed import KeyCall, words_or_json
from understudy.calls.options import ServerOptions, as_parameters, given_bounds, server_options
from understudy.calls.paging import entry_of, pages
from understudy.commands.reading import KeyCommand, longs_option
from understudy.commands.row_output import TEXT_FORMATS, checked_format, format_option, item_columns, output_of
from understudy.terminal.console import print_json
from understudy.terminal.exits import EXIT_CODES_HELP


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1)
@click.option("--from", type=click.IntRange(min=0), help="The first version.  [default: the oldest that can be read]")
@click.option("--to", type=click.IntRange(min=0), help="The last version.  [default: the newest]")
@click.option(
    "--include-expired/--no-include-expired",
    default=None,
    help="Whether to show what the watermark has outlived.  [default: the store's, else show it]",
)
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many versions.  [default: all]")
@format_option(TEXT_FORMATS, what="versions")
@longs_option
@server_options
def history(
    store: str,
    key: tuple[str, ...],
    *,
    limit: int | None,
    form: str | None,
    longs: str | None,
    options: ServerOptions,
    **given: Any,
) -> None:
    """Print what each version changed for one key of STORE, the oldest first: a word per key column.

    The first line is what the first version holds for the key, whenever that was written. `found` is false where the
    key was absent, or was removed. A key with nulls or empty texts is one JSON array. With --json the pages of the
    server are printed instead.

    \b
    Examples:
      understudy history aircraft N14228
      understudy history aircraft N14228 --from 400 --to 418 --format table
      understudy history aircraft '[null]' --format csv > changes.csv
    """
    asked = {**given_bounds(given), **({} if longs is None else {"longs": longs})}
    form = checked_format(form, as_json=options.as_json)
    with options.server() as server:
        heads = ("version", "committed_at", "found")
        output = output_of(form, lambda: item_columns(entry_of(server, store), heads))

        call = KeyCall(server, store, "history", words_or_json(key))

        def ask(members: dict[str, Any]) -> bytes:
            return call.get(as_parameters({name: members[name] for name in members if name != "limit"}))

        for listed in pages(ask, asked, "versions", limit, ("from", "next_from")):
            if options.as_json:
                print_json(listed.body)
            else:
                output.print_rows(listed.items)
        if not options.as_json:
            output.finish()
