"""A scan of very many keys outlives the node and the router that serve it (Q2, Q3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import SparkSession
from tests.support.spark.queries import settings
from tests.system.proof.keys import STORE
from tests.system.proof.many_keys import KEYS
from tests.system.proof.processes import Service
from tests.system.proof.subjects import MANY
from tests.system.proof.world import World, options_of, world

COMMITS = 20


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_million_keys_come_once_at_one_version_while_node_and_router_are_killed_and_batches_commit(
    tmp_path: Path, spark: SparkSession
) -> None:
    with world(tmp_path, options_of(MANY), lambda seen: None) as running:
        before, routers = running.watch.version, deque(running.routers.values())
        killed: list[Service] = []

        def kill_node(page: Mapping[str, Any]) -> None:
            killed.append(active_of(running, page["explain"]["partitions"][-1]))
            killed[-1].kill()

        def kill_router(page: Mapping[str, Any]) -> None:
            killed.append(routers.popleft())
            killed[-1].kill()

        def start_again(page: Mapping[str, Any]) -> None:
            for service in killed:
                service.start()

        steps = deque([(KEYS // 10, kill_node), (KEYS // 3, kill_router), (KEYS // 2, start_again)])
        counts: dict[int, int] = {}
        versions: set[int] = set()
        for page in pages(routers):
            versions.add(page["version"])
            rows = {row["key"]["number"]: row["value"]["count"] for row in page["rows"]}
            assert not counts.keys() & rows.keys(), "a key came twice"
            counts |= rows
            if steps and len(counts) >= steps[0][0]:
                steps.popleft()[1](page)
        assert not steps
        assert running.watch.version - before >= COMMITS
        running.spark.kill()
        (version,) = versions
        assert counts == counts_by_spark(spark, running.storage.location, version)


def pages(routers: Sequence[Service]) -> Iterator[Mapping[str, Any]]:
    """Every page of a scan, each asked of the first router."""
    cursor = ""
    while True:
        reply = routers[0].get(f"/v1/stores/{STORE}/scan?explain=true{cursor}")
        assert reply.status == 200, reply
        yield reply.body
        if reply.body["next_cursor"] is None:
            return
        cursor = f"&cursor={quote(str(reply.body['next_cursor']))}"


def active_of(running: World, partition: int) -> Service:
    (store,) = running.lag_report()["stores"]
    (node,) = [
        replica["node_id"]
        for replica in store["partitions"]
        if replica["partition"] == partition and replica["role"] == "active"
    ]
    return running.nodes[node]


def counts_by_spark(spark: SparkSession, checkpoint: str, version: int) -> dict[int, int]:
    with settings(spark, options_of(MANY).state_format.conf()):
        reader = spark.read.format("statestore").option("batchId", version - 1)
        table = reader.load(checkpoint).selectExpr("key.number", "value.count").toArrow()
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
