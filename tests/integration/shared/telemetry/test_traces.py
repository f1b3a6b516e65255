"""A trace goes from a reader through router and node into the logs of both; without one nothing of it is sent."""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import STORE
from tests.support.cluster.fake_cluster import cluster as fake_cluster
from tests.support.cluster.fake_node import found, problem
from tests.support.cluster.in_process import LIMIT_S, ClusterRouter, cluster
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.http.problems import ProblemType

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
KEY = f"/v1/stores/op0/keys/{WORDS[0]}"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRouter]:
    folder = tmp_path_factory.mktemp("traces")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1)
    with redis_server() as redis, cluster(checkpoint.path, folder, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=1)
        yield known.router


def ask(router: ClusterRouter, method: str, target: str, headers: dict[str, str], body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=LIMIT_S)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def traced(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, Any]]]:
    """Service, outcome and fields of each line about a traced read."""
    return [
        (record.name.partition(".")[0], record.outcome, vars(record))  # type: ignore[attr-defined]
        for record in list(caplog.records)
        if getattr(record, "trace_id", None) == TRACE_ID and record.action == "read"  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize(
    ("target", "more", "outcome"),
    [
        (KEY, {}, "found"),
        (KEY, {"content-length": "0"}, "found"),
        ("/v1/stores/op0/keys/nowhere", {}, "absent"),
        (f"{KEY}?max_staleness_ms=0&max_lag=0", {"content-length": "0"}, None),
    ],
    ids=["directly", "by ASGI", "absent", "under a bound"],
)
def test_a_lookup_with_a_trace_has_a_line_with_its_ids_at_the_router_and_at_the_node(
    router: ClusterRouter, caplog: pytest.LogCaptureFixture, target: str, more: dict[str, str], outcome: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    assert ask(router, "GET", target, {**TRACEPARENT, **more}) in {200, 404, 503}
    wait_until(
        lambda: {service for service, *_ in traced(caplog)} >= {"understudy_router", "understudy_node"}, what="both"
    )
    for _, said, fields in traced(caplog):
        assert said == outcome or outcome is None
        assert fields["parent_id"] == SPAN_ID
        assert WORDS[0] not in json.dumps({name: str(value) for name, value in fields.items()})


async def test_a_read_that_needs_another_node_says_so_once_a_minute_with_the_readers_trace_and_no_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    refuses = problem(ProblemType.STORE_ERROR)
    async with fake_cluster(lambda *_: refuses, lambda *_: found("b")) as known:
        for _ in range(5):
            assert (await known.http.get(f"{STORE}/keys/secret", headers=TRACEPARENT)).status_code == 200
        lines = [record for record in caplog.records if getattr(record, "action", "") == "read-fallback"]
        (line,) = lines
        fields = vars(line)
        assert (fields["node"], fields["reason"], fields["store"]) == ("a", "store-error", "words")
        assert (fields["trace_id"], fields["parent_id"]) == (TRACE_ID, SPAN_ID)
        assert "secret" not in line.getMessage() + str(fields)
        assert known.router.forwarder.context.fallbacks["store-error"] >= 1
        assert [trace.trace.trace_id for hop in known.nodes[1].hops for trace in hop.traces] == [TRACE_ID] * 5
