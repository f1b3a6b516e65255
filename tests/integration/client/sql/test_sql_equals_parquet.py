"""SQL over a served store says what DuckDB says over the exported Parquet of the same version (Q37, Q38)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from pyarrow import parquet
from tests.support.checkpoint.handmade_types import ROWS, HandmadeTypes
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.exported import Exported, export
from tests.support.spark.queries import wait_until
from tests.support.sql.statements import differences, seen, statements

from understudy import Client
from understudy.sql import dataset, exact
from understudy.sql.narrowing import Access, narrowed
from understudy.sql.predicates import Combined, Predicate, UnreadFilterError
from understudy.sql.session import SqlSession

SEED = 20261126


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("types")
    checkpoint = HandmadeTypes(folder / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, folder / "data") as running:
        running.wait_for_version(2)
        yield running


@pytest.fixture(scope="module")
def exported(node: ServedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    path = tmp_path_factory.mktemp("exported") / "op0.parquet"
    found: list[Exported] = []

    def is_exported() -> bool:
        found.append(export(node, "op0", format="arrow", version=2))
        return found[-1].status == 200

    wait_until(is_exported, what="an export")
    table, said = found[-1].arrow()
    assert said[-1]["end"] == {"rows": ROWS, "version": 2, "partitions": 2}
    parquet.write_table(table, path)
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE VIEW op0 AS FROM '{path}'")
        yield connection


@pytest.fixture(scope="module")
def session(node: ServedNode) -> Iterator[SqlSession]:
    with Client(f"http://127.0.0.1:{node.port}") as client, SqlSession(client) as running:
        yield running


def test_random_statements_equal_those_over_parquet(session: SqlSession, exported: Any) -> None:
    """Q37, of which a full case asks more."""
    assert differences(session, exported, statements(SEED, 60)) == []


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_many_random_statements_equal_those_over_parquet(session: SqlSession, exported: Any, seed: int) -> None:
    """Q37."""
    assert differences(session, exported, statements(seed, 100)) == []


def test_a_source_that_ignores_filters_is_found(
    session: SqlSession, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q38."""
    monkeypatch.setattr(dataset, "_filtered", lambda batch, expression: batch)
    assert seen(session, exported, statements(SEED, 60))


def test_a_scan_that_is_narrowed_too_much_is_found(
    session: SqlSession, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def either_is_both(predicate: Any, table: Any, schema: Any) -> Access:
        match predicate:
            case Combined("or", parts):
                predicate = Combined("and", parts)
        return narrowed(predicate, table, schema)

    monkeypatch.setattr(dataset, "narrowed", either_is_both)
    assert seen(session, exported, statements(SEED, 60))


def test_a_filter_that_cannot_be_read_costs_time_and_no_rows(
    session: SqlSession, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(data: bytes) -> Predicate:
        raise UnreadFilterError(f"a filter of {len(data)} bytes cannot be read")

    monkeypatch.setattr(exact, "read_filter", unread)
    assert differences(session, exported, statements(SEED, 12)) == []
    with session.run("select n from op0 where k = 'k3' and n = 3") as answer:
        assert answer.table().to_pylist() == [{"n": 3}]
    assert [str(each) for each in answer.account] == [f"op0: scan of all rows, {ROWS} rows"]
