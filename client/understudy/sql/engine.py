"""DuckDB, locked down: it reads what is registered and nothing else. It imports duckdb.

A statement is a SELECT or an EXPLAIN. Files, the network, extensions, settings and the variables of the program are out
of reach, and the settings that say so are locked.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import duckdb

from understudy.sql.errors import SqlError, statement_error
from understudy_shared.base.texts import parse_size

TEMP_LIMIT: Final = "10GiB"
MAX_THREADS: Final = 4
BATCH_ROWS: Final = 8_192
"""Number of rows of a result that are handed on at once."""

Parameters = Sequence[object] | dict[str, object] | None

_KINDS: Final = ("SELECT", "EXPLAIN")
_EXPLAINED: Final = re.compile(r"\s*explain(\s+analyze)?(\s*\([^)]*\))?\s", re.IGNORECASE)
_ALLOWED: Final = "Write one SELECT, WITH, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN"


class Engine:
    """A DuckDB of its own, in memory. What does not fit into the limit goes to files of a temporary directory."""

    def __init__(self, memory_limit: str) -> None:
        """Start it. `memory_limit` is DuckDB's; the process takes about 1.4 times as much."""
        self._folder = tempfile.TemporaryDirectory(prefix="understudy-sql-")
        size_bytes = parse_size(memory_limit)
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{size_bytes}B",
                "threads": min(os.cpu_count() or 1, MAX_THREADS),
                "temp_directory": self._folder.name,
                "max_temp_directory_size": f"{parse_size(TEMP_LIMIT)}B",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
            },
        )
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def close(self) -> None:
        """Stop it, and remove its files."""
        self._connection.close()
        self._folder.cleanup()

    def check(self, text: str) -> str:
        """Return the one statement of a text. Raises SqlError for several, and for what is not allowed."""
        found = self.statements(text)
        if len(found) != 1:
            what = f"the text has {len(found)} statements" if found else "there is no statement"
            raise SqlError(what, where="SQL", fix=_ALLOWED)
        return found[0]

    def statements(self, text: str) -> list[str]:
        """Return the statements of a text. Raises SqlError for one that is not allowed."""
        try:
            found = self._connection.extract_statements(text)
        except duckdb.Error as error:
            raise statement_error(error, ()) from None
        for each in found:
            kind = self._kind(each)
            if kind not in _KINDS:
                raise SqlError(f"{kind} is not allowed: statements read stores, and nothing else", fix=_ALLOWED)
        return [each.query.strip().rstrip(";") for each in found]

    def _kind(self, statement: duckdb.Statement) -> str:
        """Return the kind of a statement, or of the subject of an EXPLAIN that is not a SELECT."""
        kind: str = statement.type.name
        if kind != "EXPLAIN":
            return kind
        explained = self._connection.extract_statements(_EXPLAINED.sub("", statement.query, count=1))
        return kind if explained and explained[0].type.name == "SELECT" else "EXPLAIN of another statement"

    def table_names(self, statement: str) -> set[str]:
        """Return the names of the tables that a statement reads; empty if that is unknown."""
        try:
            return set(self._connection.get_table_names(_EXPLAINED.sub("", statement, count=1)))
        except duckdb.Error:
            return set()

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Give a connection for one statement: its registrations end with it."""
        with self._connection.cursor() as cursor:
            yield cursor


def run(cursor: duckdb.DuckDBPyConnection, statement: str, parameters: Parameters) -> Any:
    """Start a statement, and return the pyarrow.RecordBatchReader of its rows, which come as they are read."""
    relation = cursor.sql(statement, params=parameters)
    return relation.to_arrow_reader(BATCH_ROWS)


def load(cursor: duckdb.DuckDBPyConnection, name: str, dataset: object) -> None:
    """Copy a table into DuckDB, for a statement with a filter that the source cannot apply."""
    cursor.register("understudy_source", dataset)
    quoted = '"' + name.replace('"', '""') + '"'
    cursor.execute(f"CREATE TEMP TABLE {quoted} AS FROM understudy_source")
    cursor.unregister("understudy_source")
