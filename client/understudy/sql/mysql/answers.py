"""The answers to statements about tables, and to those that read no table: DuckDB over what is said here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from understudy.sql.engine import Engine, run
from understudy.sql.errors import SqlError, statement_error
from understudy.sql.mysql.catalogue import Described
from understudy.sql.mysql.dialect import INFORMATION_SCHEMA, catalogue_name


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """All rows of an answer."""

    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        yield from self.table.to_batches()


@contextmanager
def answered(engine: Engine, text: str, described: Mapping[str, Described]) -> Iterator[TableAnswer]:
    """Give the answer to a statement over these tables of the information schema. Raises SqlError."""
    statement = engine.check(text)
    with engine.cursor() as cursor:
        for name, (columns, rows) in described.items():
            if catalogue_name(name) not in text:
                continue
            cursor.register(catalogue_name(name), arrow_table(columns.split(), rows))
        try:
            yield TableAnswer(run(cursor, statement, None).read_all())
        except duckdb.InterruptException:
            raise KeyboardInterrupt from None
        except (duckdb.Error, pa.ArrowException) as error:
            raise _named(statement_error(error, (), list(described))) from None


def _named(error: SqlError) -> SqlError:
    return SqlError(error.what.replace(f"{INFORMATION_SCHEMA} ", f"{INFORMATION_SCHEMA}."), where="SQL", fix=error.fix)


def arrow_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows as a table of Arrow. Columns without a number are texts."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    types = [pa.int64() if any(isinstance(each, int) for each in column) else pa.string() for column in columns]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=list(names))
