"""SQL over a served store says what DuckDB says over the exported Parquet of the same version (Q37, Q38)."""

from __future__ import annotations

import threading
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
from understudy.calls.export_streams import ExportPiece, read_arrow
from understudy.client.core.scans import Question
from understudy.client.errors import OverloadedError
from understudy.sql import dataset, reads
from understudy.sql.session import SqlSession
from understudy.sql.tables import AccessPath, Combined, narrowed
from understudy.typed.frames import CutError

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


@pytest.mark.parametrize("page_rows", [1000, 100])
def test_random_statements_equal_those_over_parquet(
    session: SqlSession, exported: Any, page_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q37, of which a full case asks more. Behind a page of 100 rows the rest comes by exports."""
    monkeypatch.setattr(reads, "MAX_SCAN_ROWS", page_rows)
    assert differences(session, exported, statements(SEED + page_rows, 30)) == []


@pytest.mark.full
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 10))])
def test_many_random_statements_equal_those_over_parquet(
    session: SqlSession, exported: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q37."""
    monkeypatch.setattr(reads, "MAX_SCAN_ROWS", (1000, 170, 20)[seed % 3])
    assert differences(session, exported, statements(seed, 100)) == []


@pytest.mark.full
def test_a_source_that_ignores_filters_is_found(
    session: SqlSession, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q38."""
    monkeypatch.setattr(dataset, "_filtered", lambda batch, expression: batch)
    assert seen(session, exported, statements(SEED, 60))


@pytest.mark.full
def test_a_scan_that_is_narrowed_too_much_is_found(
    session: SqlSession, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def either_is_both(predicate: Any, table: Any, schema: Any) -> AccessPath:
        match predicate:
            case Combined("or", parts):
                predicate = Combined("and", parts)
        return narrowed(predicate, table, schema)

    monkeypatch.setattr(dataset, "narrowed", either_is_both)
    assert seen(session, exported, statements(SEED, 60))


def cut_after(rows: int, *, times: int) -> Any:
    """Return a reader of streams that cuts the first ones, in the middle of a piece."""
    left = [times]

    def read(body: Any) -> Iterator[ExportPiece]:
        for piece in read_arrow(body):
            if left[0] and piece.rows > rows:
                left[0] -= 1
                yield piece._replace(content=[piece.content[0].slice(0, rows)], rows=rows, cursor=None)
                raise CutError("the stream has no end record")
            yield piece

    return read


def test_exports_that_are_cut_go_on_and_bring_each_row_once(
    session: SqlSession, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "MAX_SCAN_ROWS", 30)
    monkeypatch.setattr(reads, "read_arrow", cut_after(11, times=5))
    monkeypatch.setattr(reads, "FIRST_PAUSE_S", 0.001)
    assert differences(session, exported, ["select * exclude (took) from op0", "select n from op0 where s > 3"]) == []
    with session.run("select * from op0 limit 35") as answer:
        assert answer.table().num_rows == 35
    assert answer.account[0].exported > 0
    assert "understudy-sql-export" not in {each.name for each in threading.enumerate()}


def test_without_room_for_exports_the_rest_comes_by_pages(
    session: SqlSession, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> Any:
        raise OverloadedError({"detail": "2 exports are in flight", "status": 429})
        yield given

    monkeypatch.setattr(reads, "MAX_SCAN_ROWS", 170)
    monkeypatch.setattr(Question, "stream", refused)
    assert differences(session, exported, ["select * exclude (took) from op0"]) == []
