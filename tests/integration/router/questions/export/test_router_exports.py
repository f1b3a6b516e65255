"""Exports through a router: those of the nodes, in every form, whatever happens to the nodes meanwhile."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import VERSION, cluster
from tests.support.cluster.served_node import Served
from tests.support.oracle.exported import Exported, export, received
from tests.support.oracle.scanned import scan_target, scanned
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.questions.export import service as node_exports
from understudy_shared.questions.export import service as shared_exports
from understudy_shared.server import service

FORMATS = ("ndjson", "csv", "arrow")


def test_the_exports_of_a_router_are_those_of_a_node(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        node, router = known.nodes["n1"], known.router
        rows = scanned(router, "op0")
        assert export(router).rows == rows
        questions: tuple[dict[str, Any], ...] = (
            {},
            {"where": [["count", ">", 1]], "fields": "total"},
            {"prefix": [WORDS[0]]},
            {"partition": 1},
            {"version": 1},
        )
        for form in FORMATS:
            for members in questions:
                of_router, of_node = export(router, format=form, **members), export(node, format=form, **members)
                assert of_router.is_whole
                assert _without_cursors(of_router, form) == _without_cursors(of_node, form), (form, members)
                assert of_router.headers["understudy-version"] == of_node.headers["understudy-version"]
        assert [row for each in range(4) for row in export(router, partition=each).rows] == rows
        cursors = export(router).cursors
        assert [len(export(router, cursor=each).rows) for each in cursors] == sorted(
            (len(export(router, cursor=each).rows) for each in cursors), reverse=True
        )
        for members in ({"where": [["nowhere", "=", 1]]}, {"format": "xml"}, {"version": 99, "wait_ms": 0}):
            reply = router.get(scan_target("op0", "export", **members))
            assert reply.status in {400, 503}
            assert reply.problem


def _without_cursors(found: Exported, form: str) -> object:
    """Return a stream without its cursors, which differ between principals and partitions."""
    if form == "ndjson":
        return [line for line in found.lines if "cursor" not in line]
    if form == "csv":
        return found.body
    table, said = found.arrow()
    return table.schema.metadata, table.to_pylist(), [each for each in said if "cursor" not in each]


@contextmanager
def reading(served: Served, **members: object) -> Iterator[http.client.HTTPResponse]:
    """An export of which nothing but its head was read."""
    connection = served._connection()
    try:
        connection.request("GET", scan_target("op0", "export", **members))
        yield connection.getresponse()
    finally:
        connection.close()


class Gate:
    """Holds the parts of nodes back, all but the first ones, until it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
        self.is_open = False
        self.waiting = 0
        self._left = after
        part = node_exports.NodeExports.part_for_router

        async def held(exports: Any, hop: Any, asker: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                self.waiting += 1
                while not self.is_open:  # noqa: ASYNC110  # nodes have loops of their own
                    await asyncio.sleep(0.005)
            return await part(exports, hop, asker)

        monkeypatch.setattr(node_exports.NodeExports, "part_for_router", held)


def test_an_export_goes_on_by_another_replica_when_its_node_is_gone_and_batches_commit(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_exports, "PART_ROWS", 1)
    monkeypatch.setattr(service, "GRACEFUL_SHUTDOWN_S", 1)  # the node ends while parts wait at the gate
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        whole = export(known.router)
        gate = Gate(monkeypatch, after=3)
        with reading(known.router) as response:
            first = response.readline()
            wait_until(lambda: gate.waiting > 0, what="parts to wait at a node")
            known.end("n1")
            checkpoint.add(VERSION + 1)
            known.nodes["n2"].wait_for_version(VERSION + 1)
            gate.is_open = True
            rest = response.read()
        found = Exported(200, {}, first + rest, is_whole=True)
        assert found.rows == whole.rows
        assert found.end == whole.end


@pytest.mark.full
def test_an_export_without_a_replica_ends_with_an_error_and_a_broken_connection(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q11: the reader goes on behind the last cursor, elsewhere or later."""
    monkeypatch.setattr(node_exports, "PART_ROWS", 1)
    monkeypatch.setattr(shared_exports, "PATIENCE_S", 0.1)
    monkeypatch.setattr(service, "GRACEFUL_SHUTDOWN_S", 1)  # the node ends while parts wait at the gate
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=VERSION)
        whole = export(known.router)
        gate = Gate(monkeypatch, after=6)
        with reading(known.router) as response:
            wait_until(lambda: gate.waiting > 0, what="parts to wait at a node")
            known.end("n1")
            found = received(response)
        gate.is_open = True
        assert not found.is_whole
        assert found.lines[-1]["error"]["status"] in {502, 503, 504}
        assert not any("end" in line for line in found.lines)
        known.start("n1").wait_for_version(VERSION)
        wait_until(lambda: export(known.router).status == 200, what="the router to hear of it")
        before = [line["row"] for line in found.lines if "row" in line]
        last = max(at for at, line in enumerate(found.lines) if "cursor" in line)
        kept = [line["row"] for line in found.lines[:last] if "row" in line]
        rest = export(known.router, cursor=found.lines[last]["cursor"])
        assert kept + rest.rows == whole.rows
        assert len(before) >= len(kept) > 0


@pytest.mark.full
def test_one_more_export_than_the_limit_is_refused_until_another_has_ended(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=VERSION)
        gate = Gate(monkeypatch, after=0)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(begun(known.router))
            wait_until(lambda: _in_flight(known.router) == 2, what="two exports in flight")
            refused = known.router.get(scan_target("op0", "export"))
            assert (refused.status, refused.problem) == (429, "overloaded")
            assert "max_exports_in_flight" in refused.text
            gate.is_open = True
            wait_until(lambda: _in_flight(known.router) == 0, what="both to end")
            assert export(known.router).rows


@contextmanager
def begun(served: Served) -> Iterator[http.client.HTTPConnection]:
    """An export of which nothing is read."""
    connection = served._connection()
    try:
        connection.request("GET", scan_target("op0", "export"))
        yield connection
    finally:
        connection.close()


def _in_flight(served: Served) -> float:
    (line,) = [each for each in served.text("/metrics").splitlines() if each.startswith("understudy_exports_in_flight")]
    return float(line.split()[-1])
