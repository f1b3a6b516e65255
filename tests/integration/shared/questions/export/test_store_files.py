"""A store is a URL: files of its rows at one version, as the tools read them that people have."""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from fsspec.implementations.http import HTTPFileSystem  # type: ignore[import-untyped]
from pyarrow import parquet
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import TASKS, VERSION, cluster
from tests.support.cluster.served_node import Served, served_node
from tests.support.oracle.exported import export
from tests.support.services.command_line import serving
from tests.support.services.guarded import Keys
from tests.support.spark.queries import wait_until

from understudy_node.questions.export import service as node_exports
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.export import service as exports

ENDINGS = ("parquet", "arrow", "arrows", "csv", "ndjson")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, module_redis: RedisServer) -> Iterator[dict[str, Served]]:
    """A node alone, as `understudy serve` is, and a router of two nodes, over one checkpoint."""
    folder = tmp_path_factory.mktemp("files")
    counts = HandmadeCheckpoint(folder / "counts", partitions=TASKS).create().add(*range(1, VERSION + 1))
    with (
        serving([str(counts.path)], folder / "serve") as alone,
        cluster(counts.path, folder / "cluster", module_redis.url, nodes=2) as known,
    ):
        known.wait_to_rest(copies=2, version=VERSION)
        yield {"serve": Served(int(alone.url.rpartition(":")[2])), "router": known.router}


@pytest.fixture(params=["serve", "router"])
def server(request: pytest.FixtureRequest, servers: dict[str, Served]) -> Served:
    return servers[request.param]


def url(server: Served, ending: str, **members: object) -> str:
    query = "&".join(f"{name}={quote(str(value))}" for name, value in members.items())
    return f"http://127.0.0.1:{server.port}/v1/stores/op0.{ending}{'?' * bool(query)}{query}"


def expected(server: Served, **members: Any) -> dict[str, int]:
    return {row["key"]["word"]: row["value"]["count"] for row in export(server, **members).rows}


def counts(words: Any, found: Any) -> dict[str, int]:
    return dict(zip(words, (int(each) for each in found), strict=True))


def got(server: Served, target: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        path = target.partition(str(server.port))[2]
        connection.request(method, path, headers={name.replace("_", "-"): each for name, each in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): each for name, each in response.getheaders()}, response.read()
    finally:
        connection.close()


def body_of(server: Served, ending: str, **members: object) -> bytes:
    answers: list[tuple[int, dict[str, str], bytes]] = []

    def is_there() -> bool:
        answers.append(got(server, url(server, ending, **members)))
        return answers[-1][0] not in {429, 502, 503, 504}  # what passes, as on a loaded machine

    wait_until(is_there, what="a file")
    assert answers[-1][0] == 200, answers[-1]
    return answers[-1][2]


def test_a_file_has_the_rows_of_an_export_and_nothing_else_in_every_form(server: Served) -> None:
    rows = expected(server)
    assert len(rows) > TASKS
    for members in ({}, {"version": VERSION}):
        bodies = {each: body_of(server, each, **members) for each in ENDINGS}
        assert got(server, url(server, "csv", **members), "HEAD")[1]["understudy-version"] == str(VERSION)
        for table in (
            parquet.read_table(io.BytesIO(bodies["parquet"])),
            pa.ipc.open_file(bodies["arrow"]).read_all(),
            pa.ipc.open_stream(bodies["arrows"]).read_all(),
        ):
            assert table.column_names == ["word", "count", "total", "problem"]
            assert counts(table["word"].to_pylist(), table["count"].to_pylist()) == rows
        lines = [json.loads(line) for line in bodies["ndjson"].splitlines()]
        assert lines == export(server).rows
        assert bodies["csv"] == export(server, format="csv", trailer=False).body
    asked = {"where": '[["count", ">", 1]]', "fields": "count", "version": 2}
    few = parquet.read_table(io.BytesIO(body_of(server, "parquet", **asked)))
    assert few.column_names == ["word", "count", "problem"]
    assert counts(few["word"].to_pylist(), few["count"].to_pylist()) == expected(server, **asked)
    assert body_of(server, "csv", prefix='["no-such-word"]').count(b"\n") == 1
    assert body_of(server, "ndjson", prefix='["no-such-word"]') == b""
    assert pl.read_parquet(body_of(server, "parquet", prefix='["no-such-word"]')).height == 0


def test_a_node_and_a_router_make_the_same_bytes_of_one_version(servers: dict[str, Served]) -> None:
    for ending in ("parquet", "arrow", "csv", "ndjson"):
        found = [got(each, url(each, ending, version=VERSION)) for each in servers.values()]
        assert found[0][2] == found[1][2]
        assert found[0][1]["content-length"] == str(len(found[0][2])) == found[1][1]["content-length"]


def test_ranges_are_given_of_a_version_that_is_named_and_of_no_other(server: Served) -> None:
    """Q: two requests that name no version may be of two versions, and a reader that joins them has neither."""
    target = url(server, "parquet", version=VERSION)
    _, head, whole = got(server, target, "HEAD")
    assert (head["content-length"], head["accept-ranges"], whole) == (str(int(head["content-length"])), "bytes", b"")
    _, _, whole = got(server, target)
    for asked, part in (("bytes=0-3", whole[:4]), ("bytes=-8", whole[-8:]), ("bytes=9-", whole[9:])):
        status, found, body = got(server, target, range=asked)
        assert (status, body, found["etag"]) == (206, part, head["etag"])
        assert found["content-range"].endswith(f"/{len(whole)}")
    assert got(server, target, range=f"bytes={len(whole)}-")[0] == 416
    assert got(server, target, range="bytes=0-3", if_range='"another"')[::2] == (200, whole)
    assert got(server, target, if_match='"another"')[0] == 412
    assert got(server, target, if_none_match=head["etag"])[::2] == (304, b"")
    newest = url(server, "parquet")
    status, found, body = got(server, newest, range="bytes=0-3")
    assert (status, found["accept-ranges"], len(body)) == (200, "none", len(whole))
    assert got(server, newest, range="bytes=0-3", if_range=found["etag"])[::2] == (206, whole[:4])
    assert "content-length" not in got(server, newest, "HEAD")[1]


def test_what_cannot_be_a_file_is_a_problem(server: Served) -> None:
    for target, status in (
        (url(server, "parquet", where='[["nowhere", "=", 1]]'), 400),
        (url(server, "csv", format="arrow"), 400),
        (url(server, "csv", version=99, wait_ms=0), 503),
        (url(server, "xlsx"), 404),
        (url(server, "parquet").replace("op0", "op9"), 404),
    ):
        found = got(server, target)
        assert found[0] == status, target
        assert found[1]["content-type"] == "application/problem+json"


def test_pandas_reads_a_store_by_its_url(server: Served) -> None:
    rows, shown = expected(server), {"Authorization": "Bearer a-key"}
    frames = [
        pd.read_parquet(url(server, "parquet"), storage_options=shown),
        pd.read_csv(url(server, "csv"), storage_options=shown),
        pd.read_feather(io.BytesIO(body_of(server, "arrow"))),
    ]
    for frame in frames:
        assert counts(frame["word"], frame["count"]) == rows
    lines = pd.json_normalize(pd.read_json(url(server, "ndjson"), lines=True).to_dict("records"))
    assert counts(lines["key.word"], lines["value.count"]) == rows


def test_polars_scans_a_store_by_its_url_at_a_version(server: Served) -> None:
    rows = expected(server)
    lazy = pl.scan_parquet(url(server, "parquet", version=VERSION))
    frame = lazy.select("word", "count").filter(pl.col("count") > 1).collect()
    assert counts(frame["word"], frame["count"]) == {word: count for word, count in rows.items() if count > 1}
    whole = pl.scan_csv(url(server, "csv", version=VERSION)).collect()
    assert counts(whole["word"], whole["count"]) == rows


class HttpFiles(HTTPFileSystem):  # type: ignore[misc]
    """The file system that DuckDB asks for a time, which fsspec's does not say: a version does not change."""

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(0, UTC)


def test_pyarrow_and_duckdb_read_a_store_through_fsspec_at_a_version(server: Served) -> None:
    rows, files = expected(server), HttpFiles(client_kwargs={"headers": {"X-Api-Key": "a-key"}})
    found = ds.dataset(url(server, "parquet", version=VERSION), filesystem=files, format="parquet")
    table = found.to_table(["word", "count"], filter=ds.field("count") > 1)
    assert counts(table["word"].to_pylist(), table["count"].to_pylist()) == {
        word: count for word, count in rows.items() if count > 1
    }
    with duckdb.connect() as connection:
        connection.register_filesystem(files)
        for read, ending, columns in (
            ("read_parquet", "parquet", "word, count"),
            ("read_csv", "csv", "word, count"),
            ("read_json", "ndjson", "key.word, value.count"),
        ):
            target = url(server, ending, version=VERSION)
            listed = connection.sql(f"SELECT {columns} FROM {read}('{target}')").fetchall()
            assert {word: int(count) for word, count in listed} == rows


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_cut_is_a_broken_transfer_or_a_problem(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q11: what came before an error never looks like a whole file."""
    counts = HandmadeCheckpoint(tmp_path / "counts", partitions=1).create().add(1, 2)
    made = node_exports.NodeExports.part
    left = 3

    async def part(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left <= 0:
            raise ProblemError(Problem(ProblemType.STORE_ERROR, "the disk is gone"))
        return await made(*given)

    monkeypatch.setattr(node_exports, "PART_ROWS", 2)
    monkeypatch.setattr(node_exports, "PLAIN_ARROW", (2, 1 << 20))
    monkeypatch.setattr(exports, "PATIENCE_S", 0.0)
    monkeypatch.setattr(node_exports.NodeExports, "part", part)
    with served_node(counts.path, tmp_path / "data") as node:
        node.wait_for_version(2, partitions=1)
        if ending in {"parquet", "arrow"}:
            assert got(node, url(node, ending))[0] == 502
        else:
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                got(node, url(node, ending))
            left = 3
            if ending != "arrows":  # which has no ranges, so it is a stream of any version
                assert got(node, url(node, ending, version=2))[0] == 502
            left = 3
            with pytest.raises((OSError, pd.errors.ParserError, pd.errors.EmptyDataError, http.client.HTTPException)):
                pd.read_csv(url(node, ending))
        left = 1000
        assert got(node, url(node, ending))[0] == 200, "a file that could not be made is made anew"


def test_each_tool_shows_a_credential_by_a_header(tmp_path: Path) -> None:
    counts = HandmadeCheckpoint(tmp_path / "counts", partitions=1).create().add(1)
    keys = Keys(tmp_path / "credentials.toml")
    keys.role("scans", '{stores = ["op0"], actions = ["scan"]}')
    keys.add("scans", "scans")
    keys.add("all", "reader")
    keys.add("monitor", "monitor")
    with served_node(counts.path, tmp_path / "data", credentials_file=keys.path) as node:
        node.key = keys["monitor"]
        node.wait_for_version(1, partitions=1)
        shown = {"Authorization": f"Bearer {keys['all']}"}
        target = url(node, "parquet", version=1)
        files = HttpFiles(client_kwargs={"headers": shown})  # Polars shows no header of its own for a URL
        heights = [
            len(pd.read_parquet(target, storage_options=shown)),
            pl.scan_pyarrow_dataset(ds.dataset(target, filesystem=files, format="parquet")).collect().height,
        ]
        assert heights == [len(counts.counts(1))] * 2
        for key, status in ((keys["scans"], 403), ("", 401), (keys["monitor"], 403)):
            head = {"Authorization": f"Bearer {key}"} if key else {}
            assert got(node, target, **head)[0] == status
