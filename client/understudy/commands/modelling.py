"""`understudy types`: Python classes for the key and the value of a store."""

from __future__ import annotations

import click
import orjson

from understudy.calls.http_client import path_segment
from understudy.calls.options import ServerOptions, server_options
from understudy.terminal.console import print_json
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy.typed.columns import read_entry
from understudy.typed.generated import models_source


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.option("--pydantic", is_flag=True, help="Print models of pydantic instead of dataclasses.")
@server_options
def types(store: str, *, pydantic: bool, options: ServerOptions) -> None:
    """Print Python classes for the key and the value of STORE, and for its result where that is known.

    A field may be null unless the store says that it never is. With --json, print what the server says of STORE.

    \b
    Examples:
      understudy types aircraft > aircraft_types.py
      understudy types aircraft --pydantic
    """
    with options.server() as server:
        body = server.get(f"/v1/stores/{path_segment(store)}")
    if options.as_json:
        print_json(body)
    else:
        click.echo(models_source(read_entry(orjson.loads(body)), pydantic=pydantic), nl=False)
