"""A session: statements over the stores of a server, each at one version. DuckDB is started by the first.

`query` is one statement of a program, in a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

import orjson

from understudy.client.core.values import SnapshotBounds
from understudy.client.sync import Client
from understudy.sql.reads import ReadStatistics, StatementReads
from understudy.sql.tables import Table, tables_of
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import PACKAGE, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.sql.engine import Engine

Parameters = Sequence[object] | dict[str, object] | None

MEMORY_LIMIT = "512MiB"


def imported(package: str) -> Any:
    """Import a package of the extra. Raises MissingExtraError."""
    try:
        return import_module(package)
    except ImportError:
        what = f"SQL needs {package}, which is not installed"
        raise MissingExtraError(what, where=f"{PACKAGE}[sql]", extras="sql") from None


class Answer:
    """The answer to a statement. Its rows are read as they are taken."""

    def __init__(self, reader: pa.RecordBatchReader, first: Sequence[pa.RecordBatch], seen: _RunningStatement) -> None:
        self._first, self._seen = first, seen
        self._reader: pa.RecordBatchReader | None = reader
        self._reads = seen.reads
        self.schema: pa.Schema = reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises the error of the server, or of the statement."""
        yield from self._first
        while self._reader is not None and (batch := self._seen.next_batch(self._reader)) is not None:
            yield batch

    def close(self) -> None:
        """Drop what has not been taken: DuckDB stops to work on it."""
        self._reader = None

    def table(self) -> pa.Table:
        """Return all rows."""
        return imported("pyarrow").Table.from_batches(list(self.batches()), self.schema)

    @property
    def version(self) -> int | None:
        """The version of all stores that were read; None if the statement reads no store."""
        return self._reads.version

    @property
    def lease(self) -> Mapping[str, Any]:
        """The lease of that version, as the server describes it."""
        return self._reads.lease

    @property
    def account(self) -> Sequence[ReadStatistics]:
        """The account of each scan of a table."""
        return self._reads.account


class SqlSession:
    """The tables of a server, and what answers statements over them. Not for several threads at once."""

    def __init__(
        self,
        client: Client,
        *,
        memory_limit: str = MEMORY_LIMIT,
        bounds: SnapshotBounds | None = None,
    ) -> None:
        """Start DuckDB. `bounds` name the version that each statement leases; without them it is the newest.

        Raises MissingExtraError where DuckDB or pyarrow is not installed.
        """
        imported("duckdb")
        imported("pyarrow")
        from understudy.sql.engine import Engine  # noqa: PLC0415  # needs duckdb

        self._client, self._bounds = client, bounds or {}
        self._unexported: set[str] = set()  # stores that refused exports for good
        self._engine: Engine = Engine(memory_limit)
        self.tables: Mapping[str, Table] = {}

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop DuckDB, and remove its files."""
        self._engine.close()

    def statements(self, text: str) -> list[str]:
        """Return the statements of a text. Raises SqlError."""
        return self._engine.statements(text)

    def refresh(self) -> Mapping[str, Table]:
        """Read which stores there are."""
        self.tables = tables_of(each.schema for each in self._client.stores())
        return self.tables

    @contextmanager
    def run(self, text: str, parameters: Parameters = None) -> Iterator[Answer]:
        """Run one statement, and give its answer. The end of the block ends the lease of its version.

        Raises SqlError for a statement that is wrong, and the errors of the client.
        """
        statement = self._engine.check(text)
        tables = self.refresh()
        named = {each.casefold() for each in self._engine.table_names(statement)}
        used = [table for name, table in tables.items() if name in named]
        reads = StatementReads(self._client, [each.store for each in used], self._bounds, self._unexported)
        seen = _RunningStatement(reads, used, [each.name for each in tables.values()])
        try:
            with self._engine.cursor() as cursor:
                answer = Answer(*self._begun(cursor, statement, parameters, seen), seen)
                try:
                    yield answer
                finally:
                    answer.close()
        finally:
            seen.close()
            reads.close()

    def _begun(
        self, cursor: Any, statement: str, parameters: Parameters, seen: _RunningStatement
    ) -> tuple[pa.RecordBatchReader, list[pa.RecordBatch]]:
        """Start a statement and read its first batch; over tables that are loaded whole, where a filter needs it."""
        from understudy.sql import engine  # noqa: PLC0415  # needs duckdb
        from understudy.sql.dataset import StoreDataset  # noqa: PLC0415  # needs pyarrow

        for table in self.tables.values():
            seen.datasets[table.name] = StoreDataset(table, seen.reads)
            cursor.register(table.name, seen.datasets[table.name])
        try:
            return seen.first(lambda: engine.run(cursor, statement, parameters))
        except UnderstudyError:
            if not any(each.unread for each in seen.datasets.values()):
                raise
        for table in seen.tables:
            seen.datasets[table.name].unread = None
            cursor.unregister(table.name)
            seen.guarded(partial(engine.load, cursor, table.name, seen.datasets[table.name]))
        return seen.first(lambda: engine.run(cursor, statement, parameters))


class _RunningStatement:
    """A running statement: its reads and tables, and the one place where exceptions of DuckDB become errors."""

    def __init__(self, reads: StatementReads, tables: Sequence[Table], known: Sequence[str]) -> None:
        self.reads, self.tables, self._known = reads, tables, known
        self.datasets: dict[str, Any] = {}

    def first(self, start: Callable[[], pa.RecordBatchReader]) -> tuple[pa.RecordBatchReader, list[pa.RecordBatch]]:
        """Start, and read the first batch, so that a failure to begin is an error of the start."""
        reader = self.guarded(start)
        batch = self.next_batch(reader)
        return reader, [] if batch is None else [batch]

    def next_batch(self, reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        """Return the next rows; None at the end."""
        return self.guarded(lambda: next(reader, None))

    def guarded(self, act: Callable[[], Any]) -> Any:
        """Call DuckDB. Raises SqlError, KeyboardInterrupt, or the error of the read that failed."""
        import duckdb  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        from understudy.sql.errors import statement_error  # noqa: PLC0415

        try:
            return act()
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError, MemoryError, UnderstudyError) as error:
            if self.reads.error is not None:
                raise self.reads.error from None
            if any(each.unread for each in self.datasets.values()):
                raise next(each.unread for each in self.datasets.values() if each.unread) from None
            if isinstance(error, UnderstudyError):
                raise
            if isinstance(error, duckdb.InterruptException) or "INTERRUPT" in str(error):
                raise KeyboardInterrupt from None
            raise statement_error(error, self.tables, self._known) from None

    def close(self) -> None:
        """Close the scans that were not read to their ends."""
        for dataset in self.datasets.values():
            for batches in dataset.open:
                with suppress(ValueError):  # a thread of DuckDB is still in it: the end of its reads ends it
                    batches.close()


def query(
    client: Client,
    statement: str,
    parameters: Parameters = None,
    *,
    memory_limit: str = MEMORY_LIMIT,
    **bounds: Unpack[SnapshotBounds],
) -> pa.Table:
    """Run a SELECT over the stores of a client, all at one version: the newest, or the one in `bounds`.

        query(client, "select * from aircraft where tailnum = $tail", {"tail": "N14228"}, version=418)

    The metadata `understudy` of the table's schema has the version. Several statements are quicker in one `SqlSession`.
    Raises SqlError, MissingExtraError, and the errors of the client.
    """
    session = SqlSession(client, memory_limit=memory_limit, bounds=bounds)
    with session, session.run(statement, parameters) as answer:
        table = answer.table()
        said = {"version": answer.version, "committed_at": answer.lease.get("committed_at")}
        return table.replace_schema_metadata({"understudy": orjson.dumps(said)})
