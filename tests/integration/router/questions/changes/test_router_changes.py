"""Changes through a router: those of the nodes, merged in the order of versions, whatever happens to the nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import VERSION, cluster
from tests.support.oracle.exported import received
from tests.support.services.changes import Changed, changes_of, changes_target
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.questions import changes as node_changes
from understudy_node.replica.past_versions import KeptChangelogs
from understudy_router.questions import scan_forwarder as scanning
from understudy_shared.questions.changes import service as shared_changes
from understudy_shared.questions.export import service as shared_exports


def test_the_changes_of_a_router_are_those_of_a_node(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        node, router = known.nodes["n1"], known.router
        questions: tuple[tuple[int, int | None, dict[str, Any]], ...] = (
            (1, None, {}),
            (2, 2, {}),
            (1, None, {"partition": 1, "fields": "count"}),
            (1, None, {"prefix": [WORDS[0]], "longs": "string"}),
        )
        for first, last, members in questions:
            of_router, of_node = changes_of(router, first, last, **members), changes_of(node, first, last, **members)
            assert of_router.end == of_node.end
            assert of_router.stream.lines == of_node.stream.lines, members
        assert router.get(changes_target(VERSION + 1)).status == 503
        for each in known.nodes.values():
            each.node.past.changelogs = KeptChangelogs(max_bytes=0)
        (checkpoint.path / checkpoint.changelog_path(1, checkpoint.partitions - 1)).unlink()
        gone = router.get(changes_target(1))
        assert (gone.status, gone.problem, gone.body["retained_versions"]) == (410, "version-gone", [2, VERSION])


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_another_replica_goes_on_for_a_lost_node_and_without_one_the_end_is_missing(
    nodes: int, checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "EXPORT_PART_S", 0.5)
    monkeypatch.setattr(node_changes, "PART_BYTES", 1)
    monkeypatch.setattr(shared_changes, "LEAST_AHEAD_BYTES", 1)
    monkeypatch.setattr(shared_changes, "MAX_AHEAD_BYTES", 0)
    monkeypatch.setattr(shared_exports, "PATIENCE_S", 5 if nodes == 2 else 0.1)
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=nodes) as known:
        known.wait_to_rest(copies=nodes, version=VERSION)
        whole = changes_of(known.router, 1)
        waiting, is_open, left = 0, False, 2 * checkpoint.partitions
        part = node_changes.NodeChanges.part_for_router

        async def held(changes: Any, hop: Any) -> Any:
            nonlocal waiting, left
            left -= 1
            if left < 0:
                waiting += 1
                while not is_open:  # noqa: ASYNC110  # nodes have loops of their own
                    await asyncio.sleep(0.005)
            return await part(changes, hop)

        monkeypatch.setattr(node_changes.NodeChanges, "part_for_router", held)
        connection = known.router._connection()
        try:
            connection.request("GET", changes_target(1))
            response = connection.getresponse()
            wait_until(lambda: waiting > 0, what="parts to wait at a node")
            known.end("n1")
            is_open = nodes == 2
            found = Changed(received(response))
        finally:
            is_open = True
            connection.close()
        if nodes == 2:
            assert found.end == whole.end
            assert found.stream.lines == whole.stream.lines
        else:
            assert not found.stream.is_whole
            assert found.stream.lines[-1]["error"]["status"] in {502, 503, 504}
            assert found.changes == whole.changes[: len(found.changes)], "what came before is right"
