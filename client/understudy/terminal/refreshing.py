"""A report that is fetched and shown until Ctrl-C: redrawn on a terminal, printed one below the other elsewhere.

While a server is away its error is shown in place of the report; only a failing first fetch ends the command.

Exports show the number of rows that have come so far.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import click

from understudy.terminal.console import Lines, Page, drawn, print_json, print_page
from understudy.terminal.exits import error_lines, say_error
from understudy_shared.base.errors import UnderstudyError


class RowProgress:
    """The number of rows so far, on a terminal that shows nothing else."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty() and not sys.stdout.isatty()
        self._rows = 0

    def __enter__(self) -> RowProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown and self._rows:
            click.echo("", err=True)

    def add(self, rows: int, version: object) -> None:
        """Show that so many more rows came."""
        self.set(self._rows + rows, version)

    def set(self, rows: int, version: object) -> None:
        """Show how many rows there are so far."""
        self._rows = rows
        if self._is_shown:
            click.echo(f"\r{rows:,} rows of version {version}", nl=False, err=True)


def watch_pages(fetch: Callable[[], bytes], page_of: Callable[[bytes], Page], *, every_s: float, as_json: bool) -> None:
    """Show `fetch` each `every_s` seconds; Ctrl-C is the way to end it, so it is not an error."""
    body: bytes | UnderstudyError = fetch()
    try:
        with ExitStack() as open_displays:
            show = _shower(page_of, open_displays, as_json=as_json)
            while True:
                show(body)
                body = _next(fetch, every_s)
    except KeyboardInterrupt:
        return


def _next(fetch: Callable[[], bytes], every_s: float) -> bytes | UnderstudyError:
    time.sleep(every_s)
    try:
        return fetch()
    except UnderstudyError as error:
        return error


def _shower(
    page_of: Callable[[bytes], Page], displays: ExitStack, *, as_json: bool
) -> Callable[[bytes | UnderstudyError], None]:
    if as_json:
        return lambda reply: say_error(reply) if isinstance(reply, UnderstudyError) else print_json(reply)
    from rich.console import Console  # noqa: PLC0415  # slow to import, and `lag` without --watch needs neither
    from rich.live import Live  # noqa: PLC0415

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if console.is_terminal:
        live = displays.enter_context(Live(console=console, auto_refresh=False, vertical_overflow="crop"))
        return lambda reply: live.update(drawn(_page(page_of, reply)), refresh=True)

    def print_after_an_empty_line(reply: bytes | UnderstudyError) -> None:
        print_page(_page(page_of, reply))
        click.echo("")

    return print_after_an_empty_line


def _page(page_of: Callable[[bytes], Page], reply: bytes | UnderstudyError) -> Page:
    return (Lines(error_lines(reply)),) if isinstance(reply, UnderstudyError) else page_of(reply)
