"""Scans and counts at a node: one version however many batches commit, and a clear problem for every bad question."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import Reply, ServedNode, served_node
from tests.support.oracle.scanned import pages, scan_target, scanned
from tests.support.spark.queries import wait_until

from understudy_node.engine import scans as record_scans
from understudy_node.questions.scan import parts
from understudy_node.questions.scan.parts import scan_part
from understudy_node.questions.scan.rows import row_maker
from understudy_node.replica.read_views import Reading
from understudy_shared.base.background import in_slices
from understudy_shared.base.words import StoreName
from understudy_shared.questions.scan import service as scans
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.page import Place, Room
from understudy_shared.questions.scan.question import ScanQuestion, decode_scan_cursor
from understudy_shared.reads.bounds import NO_BOUND

BATCHES = 20
PROVIDERS = [pytest.param(spark.HDFS, id="hdfs"), pytest.param(spark.ROCKSDB, id="rocksdb")]


@pytest.fixture
def counts(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "counts", partitions=3).create().add(1)


@contextmanager
def serving(checkpoint: HandmadeCheckpoint, folder: Path, **settings: Any) -> Iterator[ServedNode]:
    with served_node(checkpoint.path, folder, **settings) as served:
        served.wait_for_version(1, partitions=checkpoint.partitions)
        yield served


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The counts of the words; fails when a word is there twice."""
    found = {row["key"]["word"]: row["value"]["count"] for row in rows}
    assert len(found) == len(rows)
    return found


def asked(served: ServedNode, call: str = "scan", **members: object) -> Reply:
    return served.get(scan_target("op0", call, **members))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_all_pages_are_of_one_version_while_many_batches_commit(provider: str, tmp_path: Path) -> None:
    counts = HandmadeCheckpoint(tmp_path / "counts", provider=provider, partitions=3).create().add(1)
    with serving(counts, tmp_path / "data") as served:
        found: list[dict[str, Any]] = []
        versions = set()
        for number, page in enumerate(pages(served, "op0", limit=1)):
            found += page["rows"]
            versions.add((page["version"], page["position"], page["committed_at"]))
            if number < BATCHES:
                counts.add(number + 2)
                served.wait_for_version(number + 2)
        assert counted(found) == counts.counts(1)
        assert len(versions) == 1
        assert counted(scanned(served, "op0")) == counts.counts(served.partitions()[0]["current_offset_position"])  # type: ignore[arg-type]


def test_readers_that_wait_for_a_version_take_no_place_of_those_that_read(
    counts: HandmadeCheckpoint, tmp_path: Path
) -> None:
    to_come, folder = "/v1/stores/op0/scan?version=2&wait_ms=20000", tmp_path / "data"
    with serving(counts, folder, max_scans_in_flight=2) as served, ThreadPoolExecutor(3) as readers:
        waiting = [readers.submit(served.get, to_come) for _ in range(3)]
        wait_until(lambda: any(each.done() for each in waiting), what="one more than may wait")
        assert served.get("/v1/stores/op0/scan").status == 200
        assert served.get("/v1/stores/op0/count").status == 200
        counts.add(2)
        assert sorted(each.result().status for each in waiting) == [200, 200, 429]


def test_a_filtered_pass_hands_back_its_progress_when_its_time_is_over(
    counts: HandmadeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "PAGE_MS", 0)
    monkeypatch.setattr(scans, "COUNT_MS", 0)
    with serving(counts, tmp_path / "data") as served:
        found = list(pages(served, "op0", where=[["word", "=", "nowhere"]]))
        assert len(found) == len(counts.counts(1)), "each page looks at one key at least"
        assert all(page["rows"] == [] for page in found)
        monkeypatch.setattr(record_scans, "SLICE_RECORDS", 1)  # records are counted one by one
        parts = [page["count"] for page in islice(pages(served, "op0", "count"), 99)]
        assert parts == list(range(1, len(counts.counts(1)) + 1)), "the count so far is in the cursor"


def test_an_order_that_takes_too_long_or_too_much_is_a_problem_and_no_page(
    counts: HandmadeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(counts, tmp_path / "data") as served:
        page = asked(served, order="total", limit=2, explain=True).body
        assert page["explain"] == {
            "access": "pass", "looked_at": len(counts.counts(1)), "returned": 2, "partitions": [0, 1, 2],
        }  # fmt: skip
        token = page["next_cursor"]
        for members in ({}, {"order": "count"}, {"order": "total", "reverse": True}):
            assert asked(served, cursor=token, **members).body["where"] == "cursor", "it is of another question"
        monkeypatch.setattr(scans, "ORDERED_MS", -1)
        reply = asked(served, order="total")
        assert (reply.status, reply.problem, reply.body["where"]) == (504, "deadline", "order")
        assert "Narrow the scan" in reply.text
        monkeypatch.undo()
        monkeypatch.setattr(parts, "MAX_RANK_BYTES", 20)
        reply = asked(served, order="key")
        assert (reply.status, reply.problem, reply.body["where"]) == (413, "too-large", "order")


def test_a_cursor_of_something_else_or_with_a_changed_character_is_refused(
    counts: HandmadeCheckpoint, tmp_path: Path
) -> None:
    with serving(counts, tmp_path / "data") as served:
        token: Any = asked(served, limit=1).body["next_cursor"]
        assert asked(served, limit=2, cursor=token, explain=True).status == 200, "the size of pages may change"
        reply = asked(served, cursor=token + "A")
        assert (reply.status, reply.problem, reply.body["where"]) == (400, "bad-bound", "cursor")
        for members in ({"where": [["count", ">", 0]]}, {"partition": 0}, {"include_expired": False}):
            reply = asked(served, cursor=token, **members)
            assert (reply.status, reply.body["where"]) == (400, "cursor"), members
            assert "another question" in reply.text
        assert asked(served, "count", cursor=token).status == 400
        cursor = decode_scan_cursor(token)
        for other, status, says in (
            ({"store": "op1"}, 400, "of the store 'op1'"),
            ({"application": "x"}, 400, "of the application 'x'"),
            ({"lineage": "x"}, 409, "re-created"),
            ({"partition": 9}, 400, "of partition 9"),
            ({"version": 99}, 503, "version-not-yet"),
        ):
            reply = asked(served, cursor=type(cursor)(**{**_fields(cursor), **other}).encode())
            assert (reply.status, says in reply.text) == (status, True), (other, reply)


def test_a_cursor_of_a_version_that_spark_purged_is_gone_and_says_what_is_left(
    counts: HandmadeCheckpoint, tmp_path: Path
) -> None:
    with serving(counts, tmp_path / "data") as served:
        token = asked(served, limit=1).body["next_cursor"]
    counts.add(2, 3, 4, 5)
    for partition in range(3):
        counts.write(counts.snapshot_path(3, partition), counts.snapshot(3, partition))
        for version in (1, 2):
            (counts.path / counts.changelog_path(version, partition)).unlink()
    for batch in (0, 1):
        (counts.path / "commits" / str(batch)).unlink()
        (counts.path / "offsets" / str(batch)).unlink()
    with served_node(counts.path, tmp_path / "other") as served:
        served.wait_for_version(5)
        reply = asked(served, cursor=token)
        assert (reply.status, reply.problem) == (410, "version-gone")
        assert reply.body["retained_versions"] == [3, 5]
        assert "begin again" in reply.text


def _fields(cursor: Any) -> dict[str, Any]:
    return {name: getattr(cursor, name) for name in cursor.__slots__}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("questions")
    with serving(HandmadeCheckpoint(folder / "counts", partitions=3).create().add(1), folder / "data") as served:
        yield served


def test_a_page_ends_at_the_next_key_when_its_reader_has_left(node: ServedNode) -> None:
    assert node.node.generation is not None
    reader = node.node.generation.readers[StoreName("op0")]
    reading = reader.read_from(0, NO_BOUND)
    assert isinstance(reading, Reading)
    later = Room(None, 1 << 20, until_s=monotonic() + 60)
    parts = []
    left = Asker()
    left.leave()
    for asker in (left, Asker()):
        steps = scan_part(row_maker(reader, ScanQuestion()), reading, Place(0), later, asker)
        parts.append(asyncio.run(in_slices(steps)))
    assert (parts[0].looked_at, parts[0].is_end) == (1, False)
    assert (parts[1].looked_at > 1, parts[1].is_end) == (True, True)
