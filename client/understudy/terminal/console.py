"""Printing of commands: JSON bytes as they came, fields, or tables. Values are never read as markup.

Lines in a pipe or a file are not folded. On a terminal they are, and words of health have colour unless NO_COLOR is
set. Tables need rich, which takes longer to import than a lookup takes: only drawing a table imports it.

A report is lines, fields and tables, in order (data): the console prints it or draws it, once or again and again. While
a server is away its error is shown in place of the report; only a failing first fetch ends the command.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import orjson

from understudy.terminal.exits import error_lines, say_error
from understudy_shared.base.errors import UnderstudyError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Lines:
    """Text as it is. What `folds` is folded to the width of a terminal; `states` are shown in colour."""

    lines: Sequence[str]
    folds: bool = False
    states: bool = False


@dataclass(frozen=True, slots=True)
class FieldList:
    """Rows of section, name and text, aligned; a row's text begins where its last name ends."""

    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with a heading; `title` stands above it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


Page = Sequence[Lines | FieldList | Sheet]


_COLOURS = {
    "green": ("ok", "all well", "yes", "RUNNING"),
    "yellow": ("attention", "suspect", "waiting", "opening", "idle", "RESTORING", "CREATED"),
    "red": ("hurt", "unknown", "no", "dead", "quarantined", "DEAD", "UNKNOWN", "CLOSED"),
}
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}
_STATE = re.compile(rf"^(\s*(?:[\w -]+?  +)?)({'|'.join(sorted(_COLOUR_OF, key=len, reverse=True))})(?=  |:|,|$)")
"""Pattern of the state in a line: its first word, or the one after a name and two spaces."""

_PIPE_WIDTH = 100_000
_LEAST_WIDTH = 20
_FIELD = re.compile(r"  +(?=\S)")
"""Pattern of the places where a field of a line begins."""


def print_json(document: bytes) -> None:
    """Print a server's JSON document, exactly, as one line."""
    click.echo(document.rstrip(b"\n"))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, word-wrapped to the width of the terminal; the rest of each is aligned with its last field."""
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if sys.stdout.isatty() else _PIPE_WIDTH
    for line in lines:
        begins = [found.end() for found in _FIELD.finditer(line)]
        hanging = " " * (begins[-1] if begins and begins[-1] < width // 2 else 4)
        yield from textwrap.wrap(line, width, subsequent_indent=hanging, break_on_hyphens=False) or [""]


def print_page(page: Page) -> None:
    """Print the parts of a page in order; a table's cells are folded, never cut."""
    for part in page:
        if isinstance(part, Sheet):
            _print(_table(part))
        elif isinstance(part, Lines) and part.states:
            print_lines(map(_coloured, _lines(part)))
        else:
            print_lines(_lines(part))


def print_report(document: bytes, page_of: Callable[[Any], Page], *, as_json: bool) -> None:
    """Print a JSON document: as it is, or as the page that is made of it."""
    if as_json:
        print_json(document)
    else:
        print_page(page_of(orjson.loads(document)))


def drawn(page: Page) -> RenderableType:
    """Return the page for a display that draws it repeatedly."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    return Group(*(_table(part) if isinstance(part, Sheet) else Text("\n".join(_lines(part))) for part in page))


def _coloured(line: str) -> str:
    found = None if "NO_COLOR" in os.environ else _STATE.match(line)
    if found is None:
        return line
    return found[1] + click.style(found[2], fg=_COLOUR_OF[found[2]]) + line[found.end() :]


def _lines(part: Lines | FieldList) -> Iterable[str]:
    if isinstance(part, FieldList):
        return _aligned(part.rows)
    return folded(part.lines) if part.folds else part.lines


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    first = max(len(row[0]) for row in rows)
    second = max((len(row[1]) for row in rows if row[2]), default=0)
    for section, field, text in rows:
        line = f"  {section:{first}}  {field:{second}}  {text}" if text else f"  {section:{first}}  {field}"
        yield line.rstrip()


def _table(sheet: Sheet) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        title=sheet.title or None,
        title_justify="left",
    )
    for column in sheet.columns:
        table.add_column(column, overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell, _COLOUR_OF.get(cell.partition(",")[0], "")) for cell in row))
    return table


def _print(table: Table) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    with console.capture() as capture:
        console.print(table)
    print_lines(line.rstrip() for line in capture.get().splitlines())


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
