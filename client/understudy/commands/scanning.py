"""`understudy scan`, `count`, `windows` and `history`: the rows of a store, or of one key, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click
import orjson

from understudy.calls.http_client import RemoteServer, path_segment
from understudy.calls.keyed import KeyCall, words_or_json
from understudy.calls.options import (
    ServerOptions,
    as_parameters,
    bound_options,
    given_bounds,
    question_of,
    question_options,
    server_options,
    wait_ms_of,
)
from understudy.calls.paging import Listed, entry_of, pages
from understudy.commands.reading import KeyCommand, longs_option
from understudy.commands.row_output import (
    ALL_FORMATS,
    TEXT_FORMATS,
    Batched,
    Columned,
    JsonLines,
    RowOutput,
    checked_format,
    format_option,
    item_columns,
    output_of,
    window_columns,
)
from understudy.terminal.console import RowProgress, print_json
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy_shared.questions.lookup.windows import BYS


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@question_options
@click.option("--fields", help="The value and result columns to show, with commas between them.")
@click.option("--order", help="Rows in the order of this column, or of all key columns: key.")
@click.option("--reverse", is_flag=True, help="Turn the order around.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many rows.  [default: all]")
@format_option(ALL_FORMATS, what="rows")
@longs_option
@bound_options
@server_options
def scan(
    store: str,
    *,
    form: str | None,
    fields: str | None,
    order: str | None,
    reverse: bool,
    limit: int | None,
    longs: str | None,
    options: ServerOptions,
    **given: Any,
) -> None:
    """Print the rows of STORE, all of one version: a JSON object per line, or in another --format.

    With --json the pages of the server are printed instead, with the version and the cursor of each. All rows of a
    large store come quicker by understudy export.

    \b
    Examples:
      understudy scan aircraft --limit 10
      understudy scan aircraft --where '["flights", ">", 100]' --fields flights
      understudy scan aircraft --order flights --reverse --limit 3
      understudy scan aircraft --where '["flights", ">", 100]' --format csv > busy.csv
      understudy scan aircraft --json > aircraft.jsonl
    """
    question = {**question_of(given), **({"fields": fields.split(",")} if fields else {})}
    question |= given_bounds({"order": order or None, "reverse": reverse or None, "longs": longs})
    form = checked_format(form, as_json=options.as_json)
    with options.server() as server, RowProgress() as progress:
        path = f"/v1/stores/{path_segment(store)}/scan"

        def ask(asked: dict[str, Any]) -> bytes:
            return server.post(path, orjson.dumps(asked), wait_ms=wait_ms_of(asked))

        def counted() -> Iterator[Listed]:
            for listed in pages(ask, question, "rows", limit):
                yield listed
                progress.add(len(listed.items), listed.page["version"])

        _print_pages(counted(), _output(form, server, store, question.get("fields")), as_json=options.as_json)


def _print_pages(found: Iterable[Listed], output: RowOutput, *, as_json: bool) -> None:
    """Print the pages of the server, or what they list."""
    for listed in found:
        if as_json:
            print_json(listed.body)
        else:
            output.print_rows(listed.items)
    if not as_json:
        output.finish()


def _output(form: str, server: RemoteServer, store: str, fields: list[str] | None) -> RowOutput:
    if form == "ndjson":
        return JsonLines()
    entry = entry_of(server, store)
    columns = entry.exported().columns(None if fields is None else entry.named().by_part(fields))
    if form in TEXT_FORMATS:
        return Columned(form, {each.name: each.path for each in columns.columns})
    return Batched(form, store, columns)


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@question_options
@click.option("--estimate", is_flag=True, help="Answer at once, with about the number of keys.")
@bound_options
@server_options
def count(store: str, *, estimate: bool, options: ServerOptions, **given: Any) -> None:
    """Count the rows of STORE, exactly, at one version.

    \b
    Examples:
      understudy count aircraft
      understudy count aircraft --where '["flights", ">", 100]'
      understudy count aircraft --estimate
    """
    question = {**question_of(given), **({"estimate": True} if estimate else {})}
    with options.server() as server, RowProgress() as progress:
        *_, body = _counts(server, store, question, progress)
    if options.as_json:
        print_json(body)
    else:
        click.echo(orjson.loads(body)["count"])


def _counts(server: RemoteServer, store: str, question: dict[str, Any], progress: RowProgress) -> Iterator[bytes]:
    """Yield what the server answers until the count is whole."""
    while True:
        asked = {
            name: orjson.dumps(value).decode() if isinstance(value, list) else value for name, value in question.items()
        }
        body = server.get(f"/v1/stores/{path_segment(store)}/count", as_parameters(asked), wait_ms=wait_ms_of(question))
        yield body
        answer = orjson.loads(body)
        progress.set(answer["count"], answer.get("version"))
        if answer.get("next_cursor") is None:
            return
        question["cursor"] = answer["next_cursor"]


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
    asked = given_bounds(given)
    form = checked_format(form, as_json=options.as_json)
    with options.server() as server:
        output = output_of(form, lambda: window_columns(entry_of(server, store)))

        call = KeyCall(server, store, "windows", words_or_json(key))

        def ask(asked: dict[str, Any]) -> bytes:
            return call.get(as_parameters(asked), wait_ms=wait_ms_of(asked))

        _print_pages(pages(ask, asked, "windows", limit), output, as_json=options.as_json)


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
    asked = given_bounds(given)
    form = checked_format(form, as_json=options.as_json)
    with options.server() as server:
        heads = ("version", "committed_at", "found")
        output = output_of(form, lambda: item_columns(entry_of(server, store), heads))

        call = KeyCall(server, store, "history", words_or_json(key))

        def ask(members: dict[str, Any]) -> bytes:
            return call.get(as_parameters({name: members[name] for name in members if name != "limit"}))

        found = pages(ask, asked, "versions", limit, ("from", "next_from"))
        _print_pages(found, output, as_json=options.as_json)
