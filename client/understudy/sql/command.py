"""`understudy sql`: a statement over stores, all at one version; or a prompt for several.

The prompt takes statements of several lines, keeps a history, and completes names.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from understudy.calls.credentials import FIXES, client_context
from understudy.calls.http_client import in_flags, place_in_flags
from understudy.calls.options import ServerOptions, given_bounds, server_options
from understudy.client.errors import (
    BadReplyError,
    BadRequestError,
    ServerProblemError,
    UnknownApplicationError,
    UnknownStoreError,
    UnreachableError,
    UsageError,
)
from understudy.sql.errors import MemoryLimitError, SqlError
from understudy.sql.output import FORMATS, format_of, write
from understudy.sql.session import MEMORY_LIMIT, SqlSession
from understudy.sql.tables import Table, identifier
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode, say_error
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import BadSizeError, parse_size, printable

if TYPE_CHECKING:
    from understudy.client.core.values import SnapshotBounds
    from understudy.client.sync import Client
    from understudy.sql.session import Answer

MAX_HISTORY: Final = 1_000
_FIRST, _NEXT = "understudy> ", "       ...> "
_HELP: Final = """A statement ends with a semicolon, on any line. Ctrl-C drops or stops it. Tab completes names.
  .tables   the tables, with their columns      .quit   the end, as Ctrl-D is
  DESCRIBE aircraft; SHOW TABLES; SUMMARIZE aircraft; EXPLAIN SELECT ...;"""
_ENDS: Final = (".quit", ".exit", "quit", "exit", "\\q")
_WORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "USING", "AND", "OR", "NOT"),
    *("IN", "BETWEEN", "LIKE", "IS NULL", "AS", "WITH", "HAVING", "DISTINCT", "UNION ALL", "CASE", "WHEN", "THEN"),
    *("ELSE", "END", "DESC", "DESCRIBE", "SHOW TABLES", "SUMMARIZE", "EXPLAIN"),
)


def converse(session: SqlSession, run: Callable[[str], None]) -> None:
    """Read statements and run each, until the end of the input. Errors are printed, and the next one is read."""
    click.echo(f"{len(session.refresh())} tables. .help says more.", err=True)
    with _line_editing(session):
        for text in _texts():
            if text.startswith(".") or text.rstrip("; ").lower() in _ENDS:
                if text.rstrip("; ").lower() in _ENDS:
                    return
                click.echo("\n".join(_table_lines(session.refresh())) if text == ".tables" else _HELP)
                continue
            try:
                for statement in session.statements(text):
                    run(statement)
            except UnderstudyError as error:
                say_error(error)
            except KeyboardInterrupt:
                click.echo("stopped", err=True)


def _texts() -> Iterator[str]:
    """Yield what is typed: lines up to one that ends with a semicolon, or a line with a command of the prompt."""
    lines: list[str] = []
    while True:
        try:
            line = input(_NEXT if lines else _FIRST).rstrip()
        except EOFError:
            click.echo("", err=True)
            return
        except KeyboardInterrupt:
            lines = []
            click.echo("", err=True)
            continue
        if not lines and (not line or line.startswith((".", "\\")) or line.lower() in _ENDS):
            if line:
                yield line
            continue
        lines.append(line)
        if line.endswith(";"):
            yield "\n".join(lines)
            lines = []


def _table_lines(tables: Mapping[str, Table]) -> Iterator[str]:
    for table in tables.values():
        columns = ", ".join(f"{identifier(each.name)} {each.type.name}" for each in table.columns)
        yield printable(f"{identifier(table.name)} ({columns})")


class Completer:
    """A completer of words: tables and columns first, then words of SQL."""

    def __init__(self, tables: Callable[[], Mapping[str, Table]]) -> None:
        self._tables = tables
        self._found: list[str] = []

    def __call__(self, text: str, state: int) -> str | None:
        """Return the choice of that number, as readline asks for it."""
        if state == 0:
            self._found = self.choices(text)
        return self._found[state] if state < len(self._found) else None

    def choices(self, text: str) -> list[str]:
        """Return all words that begin with the text."""
        tables = self._tables().values()
        names = [identifier(each.name) for each in tables]
        names += [identifier(column) for table in tables for column in table.column_names()]
        words = [word.lower() if text.islower() else word for word in _WORDS]
        plain = text.lstrip('"').casefold()
        found = [each for each in (*names, *words) if each.lstrip('"').casefold().startswith(plain)]
        return list(dict.fromkeys(found))


@contextmanager
def _line_editing(session: SqlSession) -> Iterator[None]:
    """Edit lines with the history of earlier sessions, where Python has readline."""
    try:
        import readline  # noqa: PLC0415
    except ImportError:
        yield
        return
    path = history_path(os.environ)
    readline.set_completer(Completer(lambda: session.tables))
    readline.set_completer_delims(" \t\n,;()=<>+-*/")
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    readline.set_history_length(MAX_HISTORY)
    with suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with suppress(OSError):  # a home that cannot be written costs the history, not the session
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
        readline.set_completer(None)


def history_path(environ: Mapping[str, str]) -> Path:
    """Return the file of the history, which only its user can read."""
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local/state"
    return Path(state) / "understudy" / "sql_history"


SCAN_TIMEOUT_S = 30.0

UNCOUNTED_BYTES = 512 * 1024 * 1024
"""Room for what DuckDB does not count: rows on their way from servers, stacks of threads, output."""


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("statement", required=False)
@click.option("--format", "form", type=click.Choice(FORMATS),
    help="The form of the rows.  [default: by the name of the file; a table on a terminal, else json]",
)  # fmt: skip
@click.option("--output", default="-", show_default=True, help="The file to write, or - for the standard output.")
@click.option("--version", type=click.IntRange(min=0), help="Read this version.  [default: the newest]")
@click.option("--at", help="Read the newest version committed by then: ISO 8601 with an offset, or ms since 1970.")
@click.option("--snapshot", help="Read the version of the answer that had this `position`, or of a lease.")
@click.option("--min-position", help="Read no version older than that of the answer that had this `position`.")
@click.option("--wait-ms", type=click.IntRange(min=0), help="Time to wait for that version, in ms.")
@click.option(
    "--memory-limit", default=MEMORY_LIMIT, show_default=True,
    help="Memory of DuckDB; what needs more goes to temporary files, 10GiB at most. The process "
    "takes about 1.4 times as much; for long lists and texts, which DuckDB does not count, twice that and 512MiB.",
)  # fmt: skip
@server_options
def sql(
    statement: str | None,
    *,
    form: str | None,
    output: str,
    memory_limit: str,
    options: ServerOptions,
    **given: Any,
) -> None:
    """Run STATEMENT, a SELECT over stores as tables, with DuckDB in this process.

    All stores of a statement are read at one version, which is printed with how each was read. A key that is equal to
    something is looked up; comparisons narrow what is scanned. Without STATEMENT a terminal gets a prompt; else the
    standard input is the statement. --json is --format json.

    \b
    Examples:
      understudy sql "select origin, sum(flights) from airport group by 1"
      understudy sql "select * from aircraft where tailnum = 'N14228'"
      understudy sql "from routes" --at 2026-11-25T12:00:00Z --output routes.parquet
      understudy sql < report.sql > report.jsonl
      understudy sql
    """
    form = "json" if options.as_json and form is None else form
    chosen = format_of(form, output, on_terminal=sys.stdout.isatty())
    if output == "-" and chosen in ("parquet", "arrow") and sys.stdout.isatty():
        fix = f"Write it to a file: --output result.{chosen}"
        raise CommandError(f"{chosen} is not for a terminal", where="--format", fix=fix, exit_code=ExitCode.USAGE)
    with exit_codes(), _client(options) as client:
        bounds = _bounds(given)
        with SqlSession(client, memory_limit=memory_limit, bounds=bounds) as session, confined(memory_limit):
            if statement is None and sys.stdin.isatty():
                from understudy.sql.command import converse  # noqa: PLC0415  # readline

                converse(session, lambda each: _run(session, each, chosen, output))
            else:
                _run(session, sys.stdin.read() if statement is None else statement, chosen, output)


@contextmanager
def confined(memory_limit: str) -> Iterator[None]:
    """Limit the memory of this process: DuckDB does not count single long lists and texts, which then fail."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stacks
    wanted = pages * resource.getpagesize() + 2 * parse_size(memory_limit) + UNCOUNTED_BYTES
    known = [each for each in (before, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *known]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _run(session: SqlSession, statement: str, form: str, output: str) -> None:
    with session.run(statement) as answer:
        rows, is_cut = write(answer, form, output)
        sys.stdout.flush()
        for line in footer(answer, rows, is_cut=is_cut):
            click.echo(line, err=True)


def footer(answer: Answer, rows: int, *, is_cut: bool) -> Iterator[str]:
    """Yield the notes below a result: rows, the version of all stores, how each was read, and what is missing."""
    more = ", and more: LIMIT, or --format csv or json" if is_cut else ""
    of = "" if answer.version is None else f" of version {answer.version}"
    committed = answer.lease.get("committed_at")
    yield f"{rows} row{'' if rows == 1 else 's'}{of}{f', committed at {committed}' if committed else ''}{more}"
    yield from dict.fromkeys(f"  {each}" for each in answer.account)
    problems = max((each.problems for each in answer.account), default=0)
    cut = max((each.cut_lists for each in answer.account), default=0)
    if problems:
        yield f"  {problems} keys could not be read: the column problem says why"
    if cut:
        yield f"  {cut} keys have more elements than are shown: the column next_cursor has the place"


def _bounds(given: dict[str, Any]) -> SnapshotBounds:
    found = given_bounds(given)
    wait_ms = found.pop("wait_ms", None)
    waits = {} if wait_ms is None else {"wait": timedelta(milliseconds=wait_ms)}
    return cast("SnapshotBounds", {**found, **waits})


@contextmanager
def _client(options: ServerOptions) -> Iterator[Client]:
    """Give a client of the server that the options name."""
    from understudy.client.sync import Client  # noqa: PLC0415

    context = client_context(os.environ) if options.url.startswith("https:") else None
    scan_timeout_s = max(options.timeout_s, SCAN_TIMEOUT_S)
    with Client(
        options.url.split(","),
        timeout=options.timeout_s,
        scan_timeout=scan_timeout_s,
        ssl_context=context,
        application=options.application,
    ) as client:
        yield client


@contextmanager
def exit_codes() -> Iterator[None]:
    """Give the errors of the client and of statements the exit codes of commands."""
    try:
        yield
    except CommandError:
        raise
    except UnderstudyError as error:
        what, where, fix = error.what, error.where, error.fix
        if isinstance(error, ServerProblemError):
            what, where, fix = in_flags(what), place_in_flags(where), FIXES.get(error.type) or in_flags(fix)
        raise CommandError(what, where=where, fix=fix, exit_code=_exit_code(error)) from None


def _exit_code(error: UnderstudyError) -> ExitCode:
    match error:
        case BadReplyError() | MemoryLimitError():
            return ExitCode.REFUSED
        case UnreachableError():
            return ExitCode.UNREACHABLE
        case (
            SqlError()
            | UsageError()
            | BadRequestError()
            | UnknownApplicationError()
            | UnknownStoreError()
            | BadSizeError()
        ):
            return ExitCode.USAGE
        case _:
            return ExitCode.REFUSED
