"""`understudy export`: all rows of a store at one version into a file, whole or not at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import click
import orjson

from understudy.calls.export_streams import (
    ExportPiece,
    ReadStream,
    may_pass,
    read_arrow,
    read_csv,
    read_ndjson,
)
from understudy.calls.http_client import RemoteServer, path_segment
from understudy.calls.options import (
    ServerOptions,
    bound_options,
    question_of,
    question_options,
    server_options,
    wait_ms_of,
)
from understudy.commands.reading import longs_option
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.export_files import (
    Written,
    WrittenArrow,
    WrittenParquet,
    form_by_ending,
    require_pyarrow,
    written_whole,
)
from understudy.typed.frames import CutError
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.scan.question import decode_scan_cursor
from understudy_shared.reads.bound_parsing import LAG_PARAMETERS

FORMATS: Mapping[str, tuple[str, ReadStream, Callable[[BinaryIO], Written]]] = {
    "ndjson": ("ndjson", read_ndjson, Written),
    "csv": ("csv", read_csv, Written),
    "arrow": ("arrow", read_arrow, WrittenArrow),
    "parquet": ("arrow", read_arrow, WrittenParquet),
}
"""By the name of a format: the form of the stream, how it is read, and what it is written into."""

_BY_SUFFIX = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
ATTEMPTS = 8
"""Number of attempts in a row that bring no new rows."""

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 5.0


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.option("--out", required=True, help="The file to write, or - for the standard output.")
@click.option(
    "--format", "form", type=click.Choice(list(FORMATS)),
    help="The form of the file.  [default: by the ending of its name; ndjson where it has none]",
)  # fmt: skip
@question_options
@click.option("--fields", help="The value and result columns to show, with commas between them.")
@longs_option
@bound_options
@server_options
def export(
    store: str,
    *,
    out: str,
    form: str | None,
    fields: str | None,
    longs: str | None,
    options: ServerOptions,
    **given: Any,
) -> None:
    """Write the rows of STORE, all of one version, into a file.

    The file gets its name when all rows are in it. After a broken connection the export continues after the last rows
    that came.

    \b
    Examples:
      understudy export aircraft --out aircraft.parquet
      understudy export aircraft --out - --where '["flights", ">", 100]' | head
      understudy export aircraft --out hot.csv --partition 3 --fields flights
    """
    form = form or form_by_ending(out, _BY_SUFFIX) or "ndjson"
    asked_form, read, make = FORMATS[form]
    if asked_form == "arrow":
        require_pyarrow(form)
    question = {
        **question_of(given),
        **({"fields": fields.split(",")} if fields else {}),
        **({} if longs is None else {"longs": longs}),
        "format": asked_form,
    }
    with options.server() as server, ExportProgress() as progress, written_whole(out) as file:
        written = make(file)
        _Export(server, store, question, read, written, progress, file if out != "-" else None).run()
        written.finish()


class _Export:
    """An export on its way: what it has written, and where it resumes."""

    def __init__(  # noqa: PLR0917  # what is asked, and where it goes
        self,
        server: RemoteServer,
        store: str,
        question: dict[str, Any],
        read: ReadStream,
        written: Written,
        progress: ExportProgress,
        file: Any,
    ) -> None:
        self._server = server
        self._path = f"/v1/stores/{path_segment(store)}/export"
        self._question = question
        self._read = read
        self._written = written
        self._progress = progress
        self._file = file
        self._has_begun = False
        self._is_resumable = True
        self._attempts = ATTEMPTS

    def run(self) -> None:
        """Write all rows. Raises the error of a stream that cannot be resumed."""
        while True:
            try:
                self._attempt()
                return
            except (CutError, CommandError) as error:
                self._attempts -= 1
                if not self._has_begun or self._attempts <= 0 or not _may_pass(error):
                    raise _told(error) from None
                self._prepare_to_go_on(error)
            time.sleep(min(FIRST_PAUSE_S * 2 ** (ATTEMPTS - self._attempts - 1), MAX_PAUSE_S))

    def _attempt(self) -> None:
        wait_ms = wait_ms_of(self._question)
        with self._server.streamed(self._path, orjson.dumps(self._question), wait_ms=wait_ms) as response:
            if not self._has_begun:
                self._position = response.headers.get("understudy-position", "")
                self._progress.begin(response.headers.get("understudy-partitions", ""))
            self._has_begun = True
            for piece in self._read(response.body):
                self._written.write(piece.content)
                self._progress.add(piece)
                self._attempts = ATTEMPTS
                self._is_resumable = piece.cursor is not None
                if piece.cursor is not None:
                    self._question["cursor"] = piece.cursor

    def _prepare_to_go_on(self, error: UnderstudyError) -> None:
        """Resume after the last cursor; without one start the file again, at the same version."""
        if self._is_resumable:
            return
        if self._file is None:
            raise _told(error) from None
        self._written.restart()  # first: what it still has to write, it writes now
        self._file.seek(0)
        self._file.truncate()
        self._progress.restart()
        for name in ("version", "at", "min_position", "cursor", *LAG_PARAMETERS):
            self._question.pop(name, None)
        self._question["snapshot"] = self._position


def _may_pass(error: UnderstudyError) -> bool:
    return may_pass(error) or (isinstance(error, CommandError) and error.exit_code == ExitCode.UNREACHABLE)


def _told(error: UnderstudyError) -> CommandError:
    if isinstance(error, CommandError):
        return error
    fix = "Run it again; the file was not written"
    return CommandError(error.what, where=error.where, fix=fix, exit_code=ExitCode.UNREACHABLE)


class ExportProgress:
    """Rows, megabytes and partitions so far, on a terminal."""

    def __init__(self) -> None:
        self.rows = 0
        self._size_bytes = 0
        self._bar: Any = None
        self._task: Any = None
        self._first: int | None = None
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> ExportProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, partitions: str) -> None:
        """Show a bar for so many partitions."""
        if not self._is_shown:
            return
        from rich import console, progress  # noqa: PLC0415  # slow to import

        columns = (progress.TextColumn("{task.fields[figures]}", markup=False), progress.BarColumn(bar_width=30))
        shown = console.Console(stderr=True)
        self._bar = progress.Progress(*columns, progress.TimeElapsedColumn(), console=shown)
        total = int(partitions) if partitions.isdigit() else None
        self._task = self._bar.add_task("exporting", total=total, figures="")
        self._bar.start()

    def restart(self) -> None:
        self.rows, self._size_bytes = 0, 0

    def add(self, piece: ExportPiece) -> None:
        """Show that some rows came."""
        self.rows += piece.rows
        self._size_bytes += piece.size_bytes
        if self._bar is None:
            return
        partition = None if piece.cursor is None else decode_scan_cursor(piece.cursor).partition
        figures = f"{self.rows:,} rows, {self._size_bytes / 1e6:,.1f} MB"
        self._bar.update(self._task, figures=figures, **({} if partition is None else {"completed": partition}))
