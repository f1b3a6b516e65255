"""The prompt: statements of several lines, a history that is kept, names that are completed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from understudy.sql.session import SqlSession
from understudy.sql.table_columns import Table, identifier
from understudy.terminal.exits import say_error
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import printable

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
    """Read statements and run each, until the end of the input. What goes wrong is said, and the next one is read."""
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
        """Return all words that go on as the text does."""
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
