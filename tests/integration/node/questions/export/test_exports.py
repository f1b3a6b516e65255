"""Exports at a node: all rows of one version as one stream, which says when it is whole, in three forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.exported import Exported, export
from tests.support.oracle.scanned import scan_target, scanned
from tests.support.services.guarded import Keys
from tests.support.spark.counting_query import WORDS

from understudy_node.questions.export import service as node_exports
from understudy_node.questions.export.parts import BulkQuestion
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.export.hop import ExportPart
from understudy_shared.questions.scan.page import Place

VERSION = 3
PARTITIONS = 3
FORMATS = ("ndjson", "csv", "arrow")
PROVIDERS = [pytest.param(spark.HDFS, id="hdfs"), pytest.param(spark.ROCKSDB, id="rocksdb")]


@pytest.fixture
def counts(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "counts", partitions=PARTITIONS).create().add(*range(1, VERSION + 1))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("exports")
    counts = HandmadeCheckpoint(folder / "counts", partitions=PARTITIONS).create().add(*range(1, VERSION + 1))
    with serving(counts, folder / "data") as served:
        yield served


@contextmanager
def serving(checkpoint: HandmadeCheckpoint, folder: Path, **settings: Any) -> Iterator[ServedNode]:
    with served_node(checkpoint.path, folder, **settings) as served:
        served.wait_for_version(VERSION, partitions=checkpoint.partitions)
        yield served


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_export_has_the_rows_of_a_scan_in_every_form(provider: str, tmp_path: Path) -> None:
    counts = HandmadeCheckpoint(tmp_path / "counts", provider=provider, partitions=PARTITIONS).create()
    counts.add(*range(1, VERSION + 1))
    with serving(counts, tmp_path / "data") as served:
        rows = scanned(served, "op0")
        found = export(served)
        assert found.rows == rows
        assert found.head == {
            **{name: each for name, each in served.get(scan_target("op0")).body.items() if name in found.head},
            "partitions": [0, 1, 2],
        }
        assert found.end == {"rows": len(rows), "version": VERSION, "partitions": PARTITIONS}
        assert found.headers["understudy-version"] == str(VERSION)
        assert found.headers["understudy-position"] == found.head["position"]
        assert found.headers["cache-control"] == "no-store"
        flat = [{**row["key"], **row["value"]} for row in rows]
        table, said = export(served, format="arrow").arrow()
        assert [{name: row[name] for name in flat[0]} for row in table.to_pylist()] == flat
        assert json.loads(table.schema.metadata[b"understudy"]) == {
            **{name: found.head[name] for name in ("store", "version", "committed_at", "position", "lineage")},
            "is_flat": True,
        }
        assert said[-1] == {"end": found.end}
        lines, last = export(served, format="csv").csv()
        assert [{"word": row["word"], "count": int(row["count"]), "total": int(row["total"])} for row in lines] == flat
        assert json.loads(last.removeprefix("# end ")) == found.end
        assert export(served, format="csv", trailer=False).body == export(served, format="csv").body.removesuffix(
            last.encode()
        )


def test_an_export_goes_on_behind_each_of_its_cursors_at_the_same_version(
    counts: HandmadeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_exports, "PART_ROWS", 2)
    monkeypatch.setattr(node_exports, "PLAIN_ARROW", (2, 1 << 20))
    with serving(counts, tmp_path / "data") as served:
        whole = export(served)
        _, said = export(served, format="arrow").arrow()
        assert [each["cursor"] for each in said if "cursor" in each] == whole.cursors
        counts.add(VERSION + 1)
        served.wait_for_version(VERSION + 1)
        seen = 0
        for line in whole.lines:
            seen += "row" in line
            if "cursor" in line:
                rest = export(served, cursor=line["cursor"])
                assert rest.rows == whole.rows[seen:]
                assert rest.head["version"] == rest.end["version"] == VERSION
        token = whole.cursors[0]
        assert served.get(scan_target("op0", cursor=token)).problem == "bad-bound", "it is of an export"
        other = served.get(scan_target("op0", "export", cursor=token, where=[["count", ">", 0]]))
        assert (other.status, other.body["where"]) == (400, "cursor")


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_that_is_cut_anywhere_lacks_its_end_record(form: str, node: ServedNode) -> None:
    """Q11: by the documented check, with the end of the HTTP body repaired."""
    body = export(node, format=form).body
    assert _is_whole(form, body)
    for size in range(len(body)):
        if form == "arrow" and size >= len(body) - 8:
            continue  # the end record is there; only the mark behind it is not
        assert not _is_whole(form, body[:size]), f"{size} of {len(body)} bytes"


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_that_fails_in_the_middle_says_why_and_no_reader_takes_it_for_a_whole_one(
    form: str, node: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = node_exports.NodeExports.part

    async def failing(exports: node_exports.NodeExports, asked: BulkQuestion, place: Place, *others: Any) -> ExportPart:
        if place.partition:
            raise ProblemError(Problem(ProblemType.STORE_ERROR, "the disk is gone"))
        return await part(exports, asked, place, *others)

    monkeypatch.setattr(node_exports.NodeExports, "part", failing)
    found = export(node, format=form)
    assert not found.is_whole
    assert not _is_whole(form, found.body)
    if form == "arrow":
        reader = pa.ipc.open_stream(found.body)
        said: dict[str, Any] = {}
        while "error" not in said:
            _, metadata = reader.read_next_batch_with_custom_metadata()
            said = {} if metadata is None else json.loads(metadata[b"understudy"])
        assert said["error"]["detail"] == "the disk is gone"
        with pytest.raises(pa.ArrowInvalid):  # also of a reader that looks at no metadata
            pa.ipc.open_stream(found.body).read_all()
    else:
        assert b"the disk is gone" in found.body.splitlines()[-1]


def _is_whole(form: str, body: bytes) -> bool:
    """The check of docs/api.md."""
    found = Exported(200, {}, body, is_whole=True)
    try:
        if form == "ndjson":
            lines = found.lines
            end = lines[-1].get("end", {}) if body.endswith(b"\n") else {}
            return end.get("rows") == sum("row" in line for line in lines)
        if form == "csv":
            rows, last = found.csv()
            said = json.loads(last.removeprefix("# end ")) if last.startswith("# end ") and last.endswith("\n") else {}
            return isinstance(said, dict) and said.get("rows") == len(rows)
        table, said_of = found.arrow()
    except (ValueError, IndexError, OSError):
        return False
    return bool(said_of) and "end" in said_of[-1] and said_of[-1]["end"]["rows"] == table.num_rows


@pytest.mark.parametrize(
    ("members", "status", "problem", "where"),
    [
        pytest.param({"store": "nowhere"}, 404, "unknown-store", None, id="no such store"),
        pytest.param({"format": "xml"}, 400, "bad-bound", "format", id="no such format"),
        pytest.param({"limit": 1}, 400, "bad-bound", "limit", id="a limit"),
        pytest.param({"explain": True}, 400, "bad-bound", "explain", id="explain"),
        pytest.param({"estimate": True}, 400, "bad-bound", "estimate", id="estimate"),
        pytest.param({"longs": "string", "format": "arrow"}, 400, "bad-bound", "longs", id="longs of Arrow"),
        pytest.param({"trailer": False}, 400, "bad-bound", "trailer", id="trailer of NDJSON"),
        pytest.param({"fields": "nowhere"}, 400, "bad-bound", "fields", id="unknown field"),
        pytest.param({"where": [["nowhere", "=", 1]]}, 400, "bad-bound", "where", id="unknown column"),
        pytest.param({"partition": 9}, 400, "bad-bound", "partition", id="no such partition"),
        pytest.param({"cursor": "sc1.x"}, 400, "bad-bound", "cursor", id="no cursor"),
        pytest.param({"version": 99, "wait_ms": 0}, 503, "no-acceptable-replica", None, id="a version to come"),
    ],
)
def test_an_export_that_cannot_begin_is_a_problem_and_no_stream(
    members: dict[str, Any], status: int, problem: str, where: str | None, node: ServedNode
) -> None:
    asked = dict(members)
    reply = node.get(scan_target(asked.pop("store", "op0"), "export", **asked))
    assert (reply.status, reply.problem) == (status, problem)
    assert where is None or reply.body["where"] == where
    _, headers, body = node.head("HEAD", scan_target("op0", "export"))
    assert (body, headers["understudy-version"]) == (b"", str(VERSION))


def test_an_export_needs_a_grant_of_its_own_and_one_of_some_keys_stays_inside_it(
    counts: HandmadeCheckpoint, tmp_path: Path
) -> None:
    keys = Keys(tmp_path / "credentials.toml")
    keys.role("scans", '{stores = ["op0"], actions = ["scan"]}')
    keys.role("of-one", f'{{stores = ["op0"], actions = ["export"], key_prefix = ["{WORDS[0]}"]}}')
    keys.add("scans", "scans")
    keys.add("one", "of-one")
    keys.add("all", "reader")
    keys.add("monitor", "monitor")
    with served_node(counts.path, tmp_path / "data", credentials_file=keys.path) as served:
        served.key = keys["monitor"]
        served.wait_for_version(VERSION)
        served.key = keys["all"]
        assert len(export(served).rows) == len(counts.counts(VERSION))
        served.key = keys["scans"]
        assert served.get(scan_target("op0", "export")).problem == "forbidden"
        served.key = keys["one"]
        assert served.get(scan_target("op0")).problem == "forbidden"
        for members in ({}, {"prefix": [WORDS[1]]}, {"where": [["word", "=", WORDS[0]]]}):
            assert served.get(scan_target("op0", "export", **members)).problem == "forbidden"
        inside = export(served, prefix=[WORDS[0]])
        assert [row["key"] for row in inside.rows] == [{"word": WORDS[0]}]
        assert inside.cursors == [], "a place between other keys would tell of them"
