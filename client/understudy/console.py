"""Printing of commands: JSON bytes as they came, fields, or tables. Values are never read as markup.

Into a pipe or a file, lines are as long as they need to be; a terminal folds them. Tables need rich, which takes longer
to import than a lookup takes: only what draws a table imports it.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import orjson

from understudy.pages import Lines, Page, Sheet
from understudy.values import absence_note, answer_rows, batch_row
from understudy_shared.base.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_PIPE_WIDTH = 100_000
_LEAST_WIDTH = 20
_FIELD = re.compile(r"  +(?=\S)")
"""Pattern of the places where a field of a line begins."""


def print_json(document: bytes) -> None:
    """Print a server's JSON document, exactly, as one line."""
    click.echo(document.rstrip(b"\n"))


def print_lines(lines: Iterable[str]) -> None:
    """Print text as it is, not folded."""
    for line in lines:
        click.echo(line)


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines folded between words to the width of the terminal, the rest of each below its last field."""
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if sys.stdout.isatty() else _PIPE_WIDTH
    for line in lines:
        begins = [found.end() for found in _FIELD.finditer(line)]
        hanging = " " * (begins[-1] if begins and begins[-1] < width // 2 else 4)
        yield from textwrap.wrap(line, width, subsequent_indent=hanging, break_on_hyphens=False) or [""]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table with a heading; each cell's end is folded, never cut."""
    _print(_table(Sheet(columns, list(rows), title)))


def print_page(page: Page) -> None:
    """Print lines as they are and tables, in order."""
    for part in page:
        if isinstance(part, Lines):
            print_lines(part.lines)
        else:
            _print(_table(part))


def drawn(page: Page) -> RenderableType:
    """Return the page for a display that draws it repeatedly."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    return Group(*(Text("\n".join(part.lines)) if isinstance(part, Lines) else _table(part) for part in page))


def print_fields(rows: Iterable[Sequence[str]]) -> None:
    """Print aligned fields: names in the first columns; a row's text begins where its last name ends."""
    listed = [list(row) for row in rows]
    first = max(len(row[0]) for row in listed)
    second = max((len(row[1]) for row in listed if row[2]), default=0)
    for section, field, text in listed:
        line = f"  {section:{first}}  {field:{second}}  {text}" if text else f"  {section:{first}}  {field}"
        click.echo(line.rstrip())


def print_answer(body: bytes, *, raw: bool) -> None:
    """Print one lookup, found or absent. `raw` adds what Spark stores to a result that was computed from it."""
    answer = orjson.loads(body)
    click.echo(f"{printable(answer['store'])}: {'found' if answer['found'] else 'absent'}")
    print_fields(answer_rows(answer, raw=raw))
    if note := absence_note(answer):
        click.echo(note)


def print_batch(keys: Sequence[str], answers: Sequence[Mapping[str, Any]], *, raw: bool) -> None:
    """Print a table of a batch's outcomes, in the order of `keys`; each key whose window has closed is noted below."""
    shows_value = raw and any("result" in answer for answer in answers)
    rows, notes = [], []
    for asked, answer in zip(keys, answers, strict=True):
        row = batch_row(answer, raw=shows_value)
        rows.append((row[0] or printable(asked), *row[1:]))
        if note := absence_note(answer):
            notes.append(f"{row[0]}: {note}")
    has_result = any("result" in answer for answer in answers)
    columns = ("result" if has_result else "value", *(["value"] if shows_value else []))
    print_table(("key", "outcome", *columns, "age"), rows)
    print_lines(notes)


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
        table.add_row(*(Text(cell) for cell in row))
    return table


def _print(table: Table) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    with console.capture() as capture:
        console.print(table)
    print_lines(line.rstrip() for line in capture.get().splitlines())
