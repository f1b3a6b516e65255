"""`understudy bench`: how fast a running node or router answers lookups, and how old its answers are."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO
from urllib.parse import urlencode

import click
import orjson

from understudy.calls.credentials import authorization
from understudy.calls.http_client import path_segment, server_endpoint
from understudy.calls.options import (
    ServerOptions,
    as_parameters,
    bound_options,
    given_bounds,
    server_options,
    wait_ms_of,
)
from understudy.calls.trust import client_context
from understudy.client.core.exchange import Request
from understudy.commands.reading import keys_of_lines
from understudy.load.driving import Load
from understudy.terminal.console import print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode

MAX_KEYS = 1_000_000
MAX_RATE = 1_000_000
SHOWN_EVERY_S = 0.2


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.option(
    "--keys", "keys_file", type=click.File("rb"), required=True, metavar="FILE",
    help="JSON keys, one per line, asked for in turns; - is standard input.",
)  # fmt: skip
@click.option("--connections", type=click.IntRange(1, 10_000), default=64, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True, max=MAX_RATE),
    help="Lookups a second, whether or not the server keeps up.  [default: each connection sends on as it is answered]",
)  # fmt: skip
@bound_options
@server_options
def bench(
    store: str,
    keys_file: BinaryIO,
    *,
    connections: int,
    seconds: float,
    rate: float | None,
    options: ServerOptions,
    **bounds: Any,
) -> None:
    """Load a running server with lookups of STORE, and report rate, latency, outcomes and the age of the answers.

    Latency is measured by this process, which shares the machine's cores with a server on it. With --rate it counts
    from when a lookup fell due, so that a server that falls behind is not flattered.

    Exits with 0 when every lookup was found or absent, else with 3.

    \b
    Examples:
      jq -c '[.tailnum]' planes.json | understudy bench aircraft --keys -
      understudy bench aircraft --keys keys.txt --rate 5000 --max-staleness-ms 2000 --json
    """
    place = server_endpoint(options.url)
    keys = keys_of(keys_file)
    given = given_bounds(bounds)
    path = f"/v1/stores/{path_segment(store)}/lookup"
    # This first lookup reports a wrong store, key or bound before the load begins.
    with options.server() as server:
        server.get(path, {"key": keys[0], **as_parameters(given)}, wait_ms=wait_ms_of(given))
        own_path = server.state.named(Request("GET", path)).target
    targets = [f"{own_path}?{urlencode({'key': key, **as_parameters(given)})}" for key in keys]
    shown = "".join(f"{name}: {value}\r\n" for name, value in authorization(os.environ).items())
    requests = [
        f"GET {place.prefix}{target} HTTP/1.1\r\nhost: {place.authority}\r\n{shown}\r\n".encode() for target in targets
    ]
    load = Load(
        place.host,
        place.port,
        requests,
        connections=connections,
        rate=rate,
        timeout_s=options.timeout_s + wait_ms_of(given) / 1000,
        tls=client_context(os.environ) if place.scheme == "https" else None,
    )
    took_s = asyncio.run(_run(load, seconds, place.url))
    if options.as_json:
        print_json(orjson.dumps(load.counts.document(took_s)))
    else:
        print_lines(load.counts.lines(took_s))
    sys.exit(ExitCode.OK if load.counts.are_all_answered else ExitCode.REFUSED)


def keys_of(lines: BinaryIO) -> Sequence[str]:
    """Read the JSON keys of a file. Raises CommandError without keys, with more than MAX_KEYS, or other than JSON."""
    keys: list[str] = []
    for key in keys_of_lines(lines, source="--keys"):
        keys.append(key)
        if len(keys) > MAX_KEYS:
            raise CommandError(f"the file has more than {MAX_KEYS:,} keys", where="--keys", exit_code=ExitCode.USAGE)
    if not keys:
        raise CommandError(
            "there is no key to look up",
            where="--keys",
            fix="Write a JSON key per line, as for understudy lookup --stdin",
            exit_code=ExitCode.USAGE,
        )
    return keys


async def _run(load: Load, seconds: float, url: str) -> float:
    """Drive the load; on a terminal, show how far it is."""
    shown = asyncio.get_running_loop().create_task(_show(load, seconds)) if sys.stderr.isatty() else None
    try:
        return await load.run(seconds)
    except (OSError, TimeoutError) as error:
        what = f"cannot connect: {error or type(error).__name__}"
        raise CommandError(what, where=url, fix="Name a server with --url", exit_code=ExitCode.UNREACHABLE) from None
    finally:
        if shown is not None:
            shown.cancel()
            with suppress(asyncio.CancelledError):
                await shown


async def _show(load: Load, seconds: float) -> None:
    def so_far(_: int | None) -> str:
        return f"{load.counts.latency_ms.total:,} lookups"

    with click.progressbar(range(round(seconds / SHOWN_EVERY_S)), file=sys.stderr, item_show_func=so_far) as ticks:
        for _ in ticks:
            await asyncio.sleep(SHOWN_EVERY_S)
