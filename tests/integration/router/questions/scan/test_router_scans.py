"""Scans through a router: every key once, at one version, whatever happens to the nodes and the routers meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import VERSION, cluster
from tests.support.cluster.served_node import Reply, Served
from tests.support.oracle.scanned import pages, scan_target, scanned
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.questions.scan.service import NodeScans
from understudy_router.admin.rates import MIN_FAILED_CALLS
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.page import PartPage


def asked(served: Served, call: str = "scan", **members: object) -> Reply:
    return served.get(scan_target("op0", call, **members))


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    found = {row["key"]["word"]: row["value"]["count"] for row in rows}
    assert len(found) == len(rows), "a key twice"
    return found


def test_the_pages_of_a_router_are_those_of_the_nodes(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        node, router = known.nodes["n1"], known.router
        whole: Any = asked(router, explain=True).body
        assert counted(whole["rows"]) == checkpoint.counts(VERSION)
        assert (whole["version"], whole["next_cursor"]) == (VERSION, None)
        assert asked(node, explain=True).body == whole, "each node has every partition here"
        for limit in (1, 3, 1000):
            assert scanned(router, "op0", limit=limit) == whole["rows"]
        questions: tuple[dict[str, Any], ...] = (
            {"where": [["count", ">", 1]], "fields": "total"},
            {"where": [["word", "in", WORDS[:2]]]},
            {"where": [["word", "not_null"], ["count", "is_null"]]},
            {"prefix": [WORDS[0]]},
            {"partition": 1},
            {"longs": "string"},
            {"order": "count", "limit": 3},
            {"order": "total", "reverse": True, "where": [["count", ">", 1]]},
            {"order": "key"},
            {"from": WORDS[1], "to": WORDS[2]},
        )
        for members in questions:
            asked_of_node = asked(node, explain=True, **members).body
            assert asked(router, explain=True, **members).body == asked_of_node, members
        assert asked(router, "count").body["count"] == len(whole["rows"])
        assert asked(router, "count", estimate=True).body["count"] == len(whole["rows"])
        for service in (node, router):
            assert asked(service, "count", estimate=True, at="2020-01-01T00:00:00Z").status == 410
        for service in (node, router):
            for query, estimated in (("", {}), ("?estimate=true", {"estimated_keys": len(whole["rows"])})):
                listed: Any = service.get(f"/v1/stores{query}").body
                one = {name: said for name, said in service.get("/v1/stores/op0").body.items() if name != "schemas"}
                assert listed["stores"] == [{**one, **estimated}]
            assert service.get("/v1/stores?estimate=perhaps").problem == "bad-bound"
        for members in (
            {"where": [["nowhere", "=", 1]]},
            {"where": [["count", "=", "x"]]},
            {"prefix": [1]},
            {"order": "nowhere"},
        ):
            of_router, of_node = asked(router, **members), asked(node, **members)
            assert of_router.status == 400
            assert of_router.body == of_node.body, "a router and a node say the same"
        by_count = [row["value"]["count"] for row in scanned(router, "op0", order="count", limit=2)]
        assert by_count == sorted(checkpoint.counts(VERSION).values())
        by_word = [row["key"]["word"] for row in scanned(router, "op0", order="key", reverse=True, limit=3)]
        assert by_word == sorted(checkpoint.counts(VERSION), reverse=True)
        token = asked(router, limit=1).body["next_cursor"]
        assert asked(node, limit=1, cursor=token).body == asked(router, limit=1, cursor=token).body


def test_a_scan_goes_on_at_its_version_when_its_node_and_its_router_are_gone_and_batches_commit(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    """Q2, Q3: who lacks the version opens it from the checkpoint."""
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        scanning = pages(known.router, "op0", limit=2)
        found = [next(scanning)]
        known.end("n1")
        checkpoint.add(*range(VERSION + 1, VERSION + 21))
        known.nodes["n2"].wait_for_version(VERSION + 20)
        found.append(next(scanning))
        known.restart_router(0)
        wait_until(lambda: not known.router.not_ready(), what="the router to be ready")
        known.stop("n2")
        known.start("n2").wait_for_version(VERSION + 20)
        token = found[-1]["next_cursor"]
        wait_until(lambda: asked(known.router, limit=2, cursor=token).status == 200, what="the node to be heard")
        found += pages(known.router, "op0", limit=2, cursor=token)
        assert counted([row for page in found for row in page["rows"]]) == checkpoint.counts(VERSION)
        assert {page["version"] for page in found} == {VERSION}


def test_a_first_page_is_of_the_version_that_its_reader_names(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        for served in (known.router, known.nodes["n1"]):
            for version in (1, VERSION - 1, VERSION):
                assert counted(scanned(served, "op0", version=version)) == checkpoint.counts(version)
                assert asked(served, "count", version=version).body["count"] == len(checkpoint.counts(version))
            committed_at = asked(served, version=1).body["committed_at"]
            assert asked(served, at=committed_at).body["version"] == 1
            position = asked(served, version=2).body["position"]
            assert asked(served, snapshot=position).body["version"] == 2
            later = asked(served, version=VERSION + 1, wait_ms=0)
            assert (later.status, later.problem) == (503, "no-acceptable-replica")
            token = asked(served, version=1, limit=1).body["next_cursor"]
            assert asked(served, version=2, cursor=token).problem == "bad-bound"
            assert asked(served, version=1, cursor=token).body["version"] == 1


def test_health_says_that_nodes_refuse_all_scans_while_they_answer_lookups(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> PartPage:
        raise ProblemError(Problem(ProblemType.OVERLOADED, "this node is full"))

    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        router = known.router

        def indicators() -> dict[str, Any]:
            report: Any = router.get("/admin/v1/health").body
            return {each["name"]: each for each in report["indicators"]}

        assert indicators()["calls"]["state"] == "ok"
        monkeypatch.setattr(NodeScans, "read_for_router", refuse)
        assert {asked(router).status for _ in range(MIN_FAILED_CALLS)} == {429}
        for word in WORDS:
            assert router.get(f"/v1/stores/op0/keys/{word}").status in {200, 404}
        wait_until(lambda: indicators()["calls"]["state"] == "hurt", what="health to say so")
        found = indicators()
        assert "100 % of the scans of the last minute failed" in found["calls"]["symptom"]
        assert (found["calls"]["affected"], found["reads"]["state"]) == (["scan"], "ok")
        calls = router.router.nodes.counts
        assert {outcome for kind, outcome in calls if kind == "scan"} == {"answered"}, "each node has replied"
        assert f'op="scan",outcome="overloaded",store="op0"}} {MIN_FAILED_CALLS}.0' in router.text("/metrics")
