"""The admin API of a real router over real nodes and a real Redis: what it answers, and what it says of each fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import LIMIT_S, TASKS, VERSION, Cluster, ClusterRouter, cluster
from tests.support.services.event_streams import Viewer, applied
from tests.support.services.openapi import strict, validator
from tests.support.services.raw_http import RawClient
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_router.admin.api import Admin
from understudy_router.admin.indicators import INDICATORS
from understudy_router.cluster.tables import TableEvent
from understudy_shared.page.feed import OverviewFeed

LAG = "/admin/v1/lag"


def admin_of(router: ClusterRouter) -> Admin:
    """What the router's application looks at it by."""
    ends = [getattr(end, "__self__", None) for end in router.router._when_leaving]
    (feed,) = [each for each in ends if isinstance(each, OverviewFeed)]
    admin = cast(Any, feed._look).__self__
    assert isinstance(admin, Admin)
    return admin


def something_happens(router: ClusterRouter) -> None:
    """Have something to tell, while the cluster is at rest."""
    router.router.tables.events.append(TableEvent(router.router.now_ms(), "noted", "by the test"))


def indicator(router: ClusterRouter, name: str) -> dict[str, Any]:
    report: Any = router.get("/admin/v1/health").body
    return dict(next(each for each in report["indicators"] if each["name"] == name))


def wait_for(router: ClusterRouter, name: str, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The indicator, when it is so."""
    wait_until(lambda: bool(is_so(indicator(router, name))), what=f"the word of {name}", limit_s=LIMIT_S)
    return indicator(router, name)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes at rest, and a router."""
    folder = tmp_path_factory.mktemp("admin")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint", partitions=TASKS).create()
    checkpoint.add(*range(1, VERSION + 1))
    with redis_server() as redis, cluster(checkpoint.path, folder, redis.url) as found:
        found.wait_to_rest(copies=2, version=VERSION)
        yield found


@pytest.fixture
def router(known: Cluster) -> ClusterRouter:
    return known.router


def test_the_tree_and_the_pages_have_the_same_replicas_under_every_filter(router: ClusterRouter) -> None:
    filters = ("store=op0&", "node=n1&", "role=standby&", "state=RUNNING&", "state=DEAD&", "node=n2&role=active&")
    for query in ("", *filters):
        tree: Any = router.get(f"{LAG}?{query}").body
        expected = sorted(
            (store["store"], each["partition"], each["node_id"], each["role"], each["state"], each["offset_lag"])
            for store in tree["stores"]
            for each in store["partitions"]
        )
        found, cursor = [], ""
        while True:
            page: Any = router.get(f"{LAG}?{query}limit=3{cursor}").body
            found += page["replicas"]
            assert page["total"] == len(expected)
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        members = ("store", "partition", "node_id", "role", "state", "offset_lag")
        assert [tuple(row[name] for name in members) for row in found] == expected


def test_a_walk_by_lag_is_of_one_snapshot_and_an_old_cursor_is_refused(router: ClusterRouter) -> None:
    first: Any = router.get(f"{LAG}?sort=-lag&limit=3").body
    second: Any = router.get(f"{LAG}?sort=-lag&limit=3&cursor={first['next_cursor']}").body
    assert second["generated_at"] == first["generated_at"]
    admin_of(router).looking._walks.clear()
    refused = router.get(f"{LAG}?sort=-lag&limit=3&cursor={first['next_cursor']}")
    assert (refused.status, refused.problem) == (400, "bad-request")
    assert "Begin again" in refused.text


def is_overview(router: ClusterRouter, data: object) -> None:
    """Fails unless the document describes it, member by member."""
    document = strict(router.get("/openapi.json").body)
    validator(document, document["components"]["schemas"]["Overview"]).validate(data)


def test_a_stream_begins_with_the_whole_and_what_it_sends_makes_the_document(router: ClusterRouter) -> None:
    with Viewer(router.port) as viewer:
        assert viewer.response.headers["content-type"].partition(";")[0] == "text/event-stream"
        first = viewer.until("overview")
        is_overview(router, first.data)
        document = first.data
        something_happens(router)
        delta = viewer.until("delta")
        document = applied(document, delta.data)
        is_overview(router, document)
        assert delta.tick == document["tick"] > first.data["tick"]
        with Viewer(router.port, last_event_id=str(first.tick)) as back:
            event = back.next()
            while event is not None and event.kind == "heartbeat":
                event = back.next()
            assert event is not None
            assert event.kind == "delta"


def test_two_hundred_viewers_cost_one_look_a_tick(router: ClusterRouter) -> None:
    admin = admin_of(router)
    with ExitStack() as stack:
        viewers = [stack.enter_context(Viewer(router.port)) for _ in range(200)]
        for viewer in viewers:
            viewer.until("overview")
        looks, gathers = admin.feed.looks, admin.looking.gathers
        assert admin.feed.viewers == 200
        something_happens(router)
        for viewer in viewers:
            viewer.until("delta")
        assert admin.feed.looks - looks <= 20
        assert admin.looking.gathers - gathers <= admin.feed.looks - looks + 20
    wait_until(lambda: admin.feed.viewers == 0, what="all viewers to be gone", limit_s=LIMIT_S)


def test_a_store_says_how_many_of_its_reads_kept_their_bound_and_how_old_the_answers_were(
    router: ClusterRouter,
) -> None:
    assert {router.look_up([word]).status for word in WORDS[:5]} <= {200, 404}

    def served() -> tuple[object, object]:
        (store,) = cast(Any, router.get("/admin/v1/overview").body["stores"])
        return store["within_bound_percent"], store["staleness_p99_ms"]

    wait_until(lambda: served()[0] == 100.0, what="the reads to be counted", limit_s=LIMIT_S)
    assert isinstance(served()[1], int)


def test_nobody_may_stop_a_node_that_has_the_last_replica_and_the_answer_says_of_what(
    tmp_path: Path, redis: RedisServer, checkpoint: HandmadeCheckpoint
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, rebalance_delay_ms=60_000) as pair:
        pair.wait_to_rest(copies=2, version=VERSION)
        router = pair.router
        answer: Any = router.get("/admin/v1/nodes/n1/safe-to-stop").body
        assert answer["safe"], answer
        assert len(answer["would_lose"]["active"]) == TASKS // 2
        pair.end("n2")
        wait_until(lambda: "n2" not in router.living(), what="the death of n2", limit_s=LIMIT_S)
        answer = router.get("/admin/v1/nodes/n1/safe-to-stop").body
        assert not answer["safe"]
        lost = sorted(each["partition"] for each in answer["would_lose"]["last_replica"])
        assert lost == list(range(TASKS))
        nodes: Any = {node["node_id"]: node for node in router.get("/admin/v1/nodes").body["nodes"]}  # type: ignore[attr-defined]
        assert (nodes["n1"]["safe_to_stop"]["safe"], nodes["n2"]["live"]) == (False, False)
        dead = wait_for(router, "nodes", lambda found: found["state"] == "attention")
        assert (dead["symptom"], dead["affected"]) == ("n2 is dead", ["n2"])
        assert indicator(router, "redundancy")["state"] == "attention"
        pair.start("n2")
        pair.wait_to_rest(copies=2, version=VERSION)
        for name in INDICATORS:
            wait_for(router, name, lambda found: found["state"] == "ok")
        assert router.get("/admin/v1/health").body["headline"] == "all well"
        wait_until(
            lambda: router.get("/admin/v1/nodes/n1/safe-to-stop").body["safe"] is True,
            what="n1 is safe to stop",
            limit_s=LIMIT_S,
        )


def test_each_fault_has_its_own_word_and_takes_it_back(
    tmp_path: Path, redis: RedisServer, checkpoint: HandmadeCheckpoint
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, end_expiry_ms=500) as pair:
        pair.wait_to_rest(copies=2, version=VERSION)
        router = pair.start_router(end_expiry_ms=500)
        for name in INDICATORS:
            wait_for(router, name, lambda found: found["state"] == "ok")

        checkpoint.path.rename(tmp_path / "elsewhere")
        gone = wait_for(router, "checkpoint", lambda found: found["state"] == "hurt" and found["affected"])
        assert gone["symptom"] == f"{TASKS} store partitions answer only readers without a lag bound"
        report: Any = router.get("/admin/v1/health").body
        assert (report["state"], report["headline"].startswith(gone["symptom"])) == ("hurt", True)
        (tmp_path / "elsewhere").rename(checkpoint.path)
        wait_for(router, "checkpoint", lambda found: found["state"] == "ok")

        router.post("/admin/v1/nodes/n2/drain", b'{"drain":true}')
        drained = wait_for(router, "nodes", lambda found: found["state"] == "attention")
        assert drained["symptom"] == "n2 is draining"
        router.post("/admin/v1/nodes/n2/drain", b'{"drain":false}')
        wait_for(router, "nodes", lambda found: found["state"] == "ok")
        told: Any = router.get("/admin/v1/overview").body["events"]
        said = {each["event"]: each["detail"] for each in told}
        assert said["lag-unknown"].startswith("no node confirms the end of the commit log")
        assert said.keys() >= {"lag-known", "drain", "drain-undone"}
        assert said["drain-undone"] == "n2: somebody took the drain back"

        with Viewer(router.port) as viewer:
            document = viewer.until("overview").data
            redis.kill()
            while document["bus"]["state"] == "connected":
                document = applied(document, viewer.until("delta").data)
            redis.start()
            while document["bus"]["state"] != "connected":
                document = applied(document, viewer.until("delta").data)


@pytest.mark.full
def test_a_router_that_stops_lets_its_viewers_go_at_once_also_one_that_reads_nothing(
    tmp_path: Path,
    redis: RedisServer,
    checkpoint: HandmadeCheckpoint,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as pair:
        pair.wait_to_rest(copies=2, version=VERSION)
        router = pair.start_router()
        admin = admin_of(router)
        with Viewer(router.port) as viewer, RawClient(router.port, receive_buffer_bytes=4096) as stuck:
            viewer.until("overview")
            large, usual = b"event: overview\ndata: " + b"x" * 30_000_000 + b"\n\n", admin.feed._message
            monkeypatch.setattr(admin.feed, "_message", lambda tick, now: large if tick is None else usual(tick, now))
            stuck.send(b"GET /admin/v1/events HTTP/1.1\r\nhost: x\r\n\r\n")
            wait_until(lambda: admin.feed.viewers == 2, what="both viewers", limit_s=LIMIT_S)
            looks = admin.feed.looks  # meanwhile its buffers fill, and nothing more is sent
            wait_until(lambda: admin.feed.looks > looks + 1, what="two more looks", limit_s=LIMIT_S)
            pair._router_ends[-1].close()
            while viewer.next() is not None:
                pass
        assert not [record for record in caplog.records if "timeout graceful shutdown exceeded" in record.message]
