"""`understudy explain`: where a key is and who would be asked for it, with the reasons."""

from __future__ import annotations

from typing import Any

import click

from understudy.calls.http_client import ServerProblemError
from understudy.calls.keyed import KeyCall, checked_json
from understudy.calls.options import (
    ServerOptions,
    as_parameters,
    bound_options,
    given_bounds,
    selection_options,
    server_options,
)
from understudy.commands.reading import KeyCommand
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.reports import explain_page


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1)
@click.option("--key", "json_key", metavar="JSON", help="The key in the exact form, instead of words.")
@bound_options
@selection_options
@server_options
def explain(
    store: str,
    key: tuple[str, ...],
    *,
    json_key: str | None,
    options: ServerOptions,
    **bounds: Any,
) -> None:
    """Tell which partition of STORE a key is in, who would be asked for it in which order, and who would not, and why.

    Asks no node: it is what a router would do now, with the bounds that are given. The key is written as for get, or
    as JSON with --key.

    \b
    Examples:
      understudy explain aircraft N14228
      understudy explain routes UA EWR IAH --max-lag 0
      understudy explain aircraft --key '[null]' --json
    """
    asked = _key(key, json_key)
    with options.server() as server:
        call = KeyCall(server, store, "metadata", asked)
        try:
            body = call.get(as_parameters(given_bounds(bounds)))
        except ServerProblemError as problem:
            if problem.slug == "unknown-path":
                raise _not_a_router(options.url) from None
            raise
    options.print_report(body, explain_page)


def _key(key: tuple[str, ...], json_key: str | None) -> tuple[str, ...] | str:
    if bool(key) == (json_key is not None):
        raise click.UsageError("give the key's words, or --key JSON: one of the two")
    if json_key is not None:
        return checked_json(json_key, where="--key")
    if "" in key:
        raise click.UsageError("a key's words are not empty: use the exact form, --key '<JSON array or object>'")
    return key


def _not_a_router(url: str) -> CommandError:
    return CommandError(
        "this server is a node: it answers by itself and chooses no replica, so there is nothing to explain",
        where=url,
        fix="Name a router with --url; a node by itself shows its partitions with: understudy lag",
        exit_code=ExitCode.REFUSED,
    )
