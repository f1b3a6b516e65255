"""The errors of statements, in one line with what to do; and DuckDB's messages turned into them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from understudy.sql.tables import Table, identifier
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import did_you_mean, printable

MAX_LISTED: Final = 30

_NO_TABLE: Final = re.compile(r"Table with name (.+?) does not exist", re.DOTALL)
_NO_COLUMN: Final = re.compile(r'Referenced column "(.+?)" not found|does not have a column named "(.+?)"', re.DOTALL)
_KIND: Final = re.compile(r"^[A-Z][A-Za-z ]* (?:Error|exception): ")


class SqlError(UnderstudyError):
    """A statement that cannot be run, or that failed."""


class MemoryLimitError(SqlError):
    """A statement that needs more memory than its limit, and more disk space than there is."""


def statement_error(error: Exception, tables: Sequence[Table], known: Sequence[str] = ()) -> SqlError:
    """Translate an error of DuckDB. `tables` are the statement's, `known` the names of all."""
    said = str(error)
    first = printable(_KIND.sub("", said.partition("\n")[0]).strip())
    kind = type(error).__name__
    if found := _NO_TABLE.search(said):
        name = found[1]
        suggested = did_you_mean(name, known)
        return SqlError(f"there is no table {printable(name)}", where="SQL", fix=suggested.strip() or _listed(known))
    if found := _NO_COLUMN.search(said):
        return _no_column(found[1] or found[2], tables)
    if kind in ("OutOfMemoryException", "ArrowMemoryError", "MemoryError"):
        fix = "Give more by --memory-limit, or read less: fewer columns, a WHERE, no ORDER BY of everything"
        return MemoryLimitError(first.partition("(")[0].strip() or first, where="memory", fix=fix)
    if kind == "PermissionException" or "configuration has been locked" in said:
        fix = "Statements read stores, and nothing else: files, the network and settings are out of their reach"
        return SqlError(first, where="SQL", fix=fix)
    return SqlError(first or kind, where="SQL", fix=_place(said))


def _no_column(name: str, tables: Sequence[Table]) -> SqlError:
    columns = [column for table in tables for column in table.column_names()]
    shared = [column for column in columns if column.endswith(f".{name}")]
    what = f"there is no column {printable(name)}"
    if shared:
        choices = " or ".join(map(identifier, shared))
        return SqlError(f"{what}: several parts of the store have one", where="SQL", fix=f"Write {choices}")
    has = "; ".join(f"{table.name} has {_some(table.column_names())}" for table in tables)
    return SqlError(what, where="SQL", fix=has or "DESCRIBE a table to see its columns")


def _place(said: str) -> str:
    """Return the line that DuckDB points into, and what it suggests."""
    lines = said.splitlines()[1:]
    shown = [line.strip() for line in lines if line.startswith(("LINE ", "Did you mean", "Candidate"))]
    return printable("; ".join(shown))


def _listed(known: Sequence[str]) -> str:
    return f"The tables are {_some(known)}" if known else "No store can be asked: see `understudy stores`"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join([printable(identifier(each)) for each in names[:MAX_LISTED]]) + more
