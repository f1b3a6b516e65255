"""The forms in which commands print rows: lines of JSON, a table, CSV, an Arrow stream or Parquet.

All but the first have the columns of an export. Rows come page by page, so each page is a table.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
import orjson

from understudy.calls.options import Command
from understudy.terminal.console import Sheet, print_json, print_page
from understudy.terminal.exits import CommandError, ExitCode
from understudy.terminal.export_files import Written, WrittenArrow, WrittenParquet, require_pyarrow
from understudy.terminal.reports import shown
from understudy.typed.columns import StoreEntry
from understudy_shared.base.texts import printable
from understudy_shared.questions.export.columns import PROBLEM, ExportColumns
from understudy_shared.reads.columns import walk
from understudy_shared.reads.export_format import csv_row

TEXT_FORMATS = ("ndjson", "table", "csv")
ALL_FORMATS = (*TEXT_FORMATS, "arrow", "parquet")

Rows = Sequence[Mapping[str, Any]]
Path = tuple[str, ...]


class RowOutput(ABC):
    """A form of rows on the standard output."""

    @abstractmethod
    def print_rows(self, rows: Rows) -> None:
        """Print some rows."""

    def finish(self) -> None:  # noqa: B027  # most forms have nothing there
        """Print what follows the rows."""


def format_option(formats: Sequence[str], *, what: str) -> Callable[[Command], Command]:
    return click.option(
        "--format", "form", type=click.Choice(formats),
        help=f"The form of the {what}.  [default: ndjson, a JSON object per line]",
    )  # fmt: skip


def checked_format(form: str | None, *, as_json: bool) -> str:
    """Return the requested form. Raises CommandError for one that cannot be printed here."""
    if form is not None and as_json:
        raise click.UsageError("give --format, or --json: one of the two")
    if form in ("arrow", "parquet"):
        require_pyarrow(form)
        if sys.stdout.isatty():
            fix = f"Write it into a file: ... --format {form} > rows.{form}"
            raise CommandError(f"{form} is not for a terminal", where="--format", fix=fix, exit_code=ExitCode.USAGE)
    return form or "ndjson"


class JsonLines(RowOutput):
    """A JSON object per line."""

    def print_rows(self, rows: Rows) -> None:
        for row in rows:
            print_json(orjson.dumps(row))


class Columned(RowOutput):
    """A table, or CSV. `columns` are names, each with where a row has it."""

    def __init__(self, form: str, columns: Mapping[str, Path]) -> None:
        self._names, self._paths = tuple(columns), tuple(columns.values())
        self._is_csv = form == "csv"
        self._has_head = False

    def print_rows(self, rows: Rows) -> None:
        cells = [[walk(row, path) for path in self._paths] for row in rows]
        if self._is_csv:
            self._print_head()
            click.echo(b"".join(map(csv_row, cells)), nl=False)
        elif cells:
            shown_cells = [tuple("" if cell is None else shown(cell) for cell in row) for row in cells]
            print_page((Sheet([printable(name) for name in self._names], shown_cells),))

    def finish(self) -> None:
        if self._is_csv:
            self._print_head()

    def _print_head(self) -> None:
        if not self._has_head:
            self._has_head = True
            click.echo(csv_row(self._names), nl=False)


def output_of(form: str, columns: Callable[[], Mapping[str, Path]]) -> RowOutput:
    """Return the output in a form of text. The columns are fetched if the form has columns."""
    return JsonLines() if form == "ndjson" else Columned(form, columns())


class Batched(RowOutput):
    """An Arrow stream, or a Parquet file."""

    def __init__(self, form: str, store: str, columns: ExportColumns) -> None:
        from understudy_shared.questions.export.columns import ArrowBatches, arrow_schema  # noqa: PLC0415  # pyarrow

        schema = arrow_schema(columns, {"store": store})
        self._batches = ArrowBatches(columns, schema)
        file = sys.stdout.buffer
        self._written: Written = WrittenArrow(file) if form == "arrow" else WrittenParquet(file)
        self.print_rows(())  # the schema, also where there are no rows

    def print_rows(self, rows: Rows) -> None:
        self._written.write([_ended(self._batches.steps(rows))])

    def finish(self) -> None:
        self._written.finish()
        with suppress(ValueError):  # pyarrow has closed it
            sys.stdout.buffer.flush()


def _ended(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def item_columns(entry: StoreEntry, heads: Sequence[str], *, has_key: bool = False) -> dict[str, Path]:
    """Return the columns of a list about one key, by their names: `heads`, and what the store has of a key. Columns of
    value and result are qualified by their part if names collide.
    """
    listed = (each.path for each in entry.exported().columns().columns)
    return _by_name([*((head,) for head in heads), *(path for path in listed if has_key or path[0] != "key")])


def window_columns(entry: StoreEntry) -> dict[str, Path]:
    """Return the columns of windows: sessions are several of a key, and each has one value."""
    of_store = [("value", each.name) for each in entry.value] + [("result", each.name) for each in entry.result]
    return _by_name([("start",), ("end",), ("state",), *of_store])


def _by_name(paths: Sequence[Path]) -> dict[str, Path]:
    paths = [path for path in paths if path != (PROBLEM,)]
    is_flat = len({path[-1] for path in paths}) == len(paths)
    return {path[-1] if is_flat else ".".join(path): path for path in paths}
