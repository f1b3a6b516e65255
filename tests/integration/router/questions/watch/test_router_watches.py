"""Watches at a router: each change once and in order, whatever node or router ends meanwhile.

The checkpoint is made by hand: at version V each word was counted V times.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import Cluster, cluster
from tests.support.services.watches import Event, Watcher
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.cluster import node_calls
from understudy_shared.questions.watch.prefix_watches import MAX_PREFIX_WATCHES

FIRST, TASKS = 3, 4


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(*range(1, FIRST + 1))


@pytest.fixture
def world(checkpoint: HandmadeCheckpoint, tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, routers=2) as found:
        found.wait_to_rest(copies=2, version=FIRST)
        yield found


def assert_is_each(events: list[Event], versions: range) -> None:
    assert [(event.kind, event.version, event.counted) for event in events] == [
        ("value", version, version) for version in versions
    ]


def test_no_change_is_missed_or_repeated_when_nodes_and_routers_end(
    world: Cluster, checkpoint: HandmadeCheckpoint
) -> None:
    """Q22."""
    target = f"op0/watch/{WORDS[0]}"
    with Watcher(world.routers[0].port, target) as watcher:
        assert watcher.take().kind == "snapshot"
        checkpoint.add(FIRST + 1)
        assert_is_each(watcher.until(FIRST + 1), range(FIRST + 1, FIRST + 2))
        for node_id, last in (("n1", FIRST + 3), ("n2", FIRST + 6)):
            world.end(node_id)
            checkpoint.add(last - 1, last)
            world.start(node_id)
            assert_is_each(watcher.until(last), range(last - 1, last + 1))
            checkpoint.add(last + 1)
            assert_is_each(watcher.until(last + 1), range(last + 1, last + 2))
            world.wait_to_rest(copies=2, version=last + 1)
        seen = watcher.last_event_id
    checkpoint.add(FIRST + 8)
    with Watcher(world.routers[1].port, target, last_event_id=seen) as watcher:
        assert_is_each(watcher.until(FIRST + 8), range(FIRST + 8, FIRST + 9))
    with Watcher(world.routers[0].port, target, last_event_id="us1.garbage") as watcher:
        assert watcher.problem == "bad-bound"


def test_a_watch_of_keys_of_all_partitions_has_each_change_once_while_nodes_come_and_go(
    world: Cluster, checkpoint: HandmadeCheckpoint
) -> None:
    """Q24."""
    words = WORDS[:20]
    last = FIRST + 12
    with Watcher(world.routers[0].port, "op0/watch", {"keys": [[word] for word in words]}) as watcher:
        assert {watcher.take().kind for _ in words} == {"snapshot"}

        def change() -> None:
            for version in range(FIRST + 1, last + 1):
                if version == FIRST + 4:
                    world.end("n2")
                checkpoint.add(version)

        changing = threading.Thread(target=change)
        changing.start()
        told: dict[str, list[int]] = {word: [FIRST] for word in words}
        while min(versions[-1] for versions in told.values()) < last:
            event = watcher.take()
            versions = told[event.data["key"]["word"]]
            if event.kind == "coalesced":
                assert event.data["from"] == versions[-1] + 1
                versions.extend(range(event.data["from"], event.data["to"]))
            else:
                assert event.version == versions[-1] + 1, f"{event} behind {versions}"
                versions.append(event.version)
        changing.join()


def test_all_watchers_of_a_router_share_one_watch_of_a_partition(
    world: Cluster, checkpoint: HandmadeCheckpoint
) -> None:
    """Q27."""
    words = WORDS[:20]
    with ExitStack() as watching:
        of_one = [watching.enter_context(Watcher(world.routers[0].port, f"op0/watch/{words[0]}")) for _ in range(20)]
        of_all = [
            watching.enter_context(Watcher(world.routers[0].port, "op0/watch", {"keys": [[word] for word in words]}))
            for _ in range(5)
        ]
        for watcher in of_one:
            assert (watcher.take().version, watcher.last_event_id is not None) == (FIRST, True)
        for watcher in of_all:
            assert {watcher.take().version for _ in words} == {FIRST}
        assert watches_at_nodes(world) == TASKS
        checkpoint.add(FIRST + 1, FIRST + 2)
        for watcher in of_one:
            assert_is_each(watcher.until(FIRST + 2), range(FIRST + 1, FIRST + 3))
        for watcher in of_all:
            told = [watcher.take() for _ in range(2 * len(words))]
            for word in words:
                mine = [event for event in told if event.data["key"]["word"] == word]
                assert_is_each(mine, range(FIRST + 1, FIRST + 3))
    wait_until(lambda: watches_at_nodes(world) == 0, what="the feeds to end with their last watchers")


def watches_at_nodes(world: Cluster) -> int:
    """How many watches are open at the nodes."""
    lines = [line for node in world.nodes.values() for line in node.text("/metrics").splitlines()]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("understudy_watches "))


@pytest.mark.full
def test_a_prefix_is_watched_across_nodes_and_routers_that_end(world: Cluster, checkpoint: HandmadeCheckpoint) -> None:
    with Watcher(world.routers[0].port, "op0/watch", {"prefix": [WORDS[0]]}) as watcher:
        assert (watcher.take().kind, watcher.last_event_id is not None) == ("snapshot", True)
        checkpoint.add(FIRST + 1)
        assert_is_each(watcher.until(FIRST + 1), range(FIRST + 1, FIRST + 2))
        world.end("n1")
        checkpoint.add(FIRST + 2, FIRST + 3)
        assert_is_each(watcher.until(FIRST + 3), range(FIRST + 2, FIRST + 4))
        seen = watcher.last_event_id
    checkpoint.add(FIRST + 4)
    with Watcher(world.routers[1].port, "op0/watch", {"prefix": [WORDS[0]]}, last_event_id=seen) as watcher:
        assert_is_each(watcher.until(FIRST + 4), range(FIRST + 4, FIRST + 5))


def test_a_router_that_stops_says_so_and_another_one_goes_on(world: Cluster, checkpoint: HandmadeCheckpoint) -> None:
    target = f"op0/watch/{WORDS[1]}"
    with Watcher(world.routers[1].port, target) as watcher:
        watcher.take()
        world.restart_router(1)
        last = list(iter(watcher.next, None))[-1]
        assert (last.kind, last.data["reason"]) == ("end", "stopping")
        assert watcher.retry_ms is not None
        seen = watcher.last_event_id
    checkpoint.add(FIRST + 1)
    with Watcher(world.routers[0].port, target, last_event_id=seen) as watcher:
        assert_is_each(watcher.until(FIRST + 1), range(FIRST + 1, FIRST + 2))


@pytest.mark.full
def test_a_reader_that_opens_and_closes_a_hundred_watches_of_a_prefix_takes_nothing_from_others(
    world: Cluster, checkpoint: HandmadeCheckpoint
) -> None:
    router = world.routers[0]

    def watch(_: int) -> Watcher:
        return Watcher(router.port, "op0/watch", {"prefix": [WORDS[0]]})

    for version in (FIRST + 1, FIRST + 2):
        with ThreadPoolExecutor(100) as threads, ExitStack() as watching:
            watchers = [watching.enter_context(each) for each in threads.map(watch, range(100))]
            begun = [each for each in watchers if each.response.status == 200]
            assert len(begun) == MAX_PREFIX_WATCHES, Counter(each.response.status for each in watchers)
            assert {each.problem for each in watchers if each not in begun} == {"overloaded"}
            assert {each.take().kind for each in begun} == {"snapshot"}
            checkpoint.add(version)
            for each in begun:
                assert_is_each(each.until(version), range(version, version + 1))
        # Those who left are noticed one after another, each wherever its watch is at that moment.
        wait_until(lambda: "\nunderstudy_watches 0.0\n" in router.text("/metrics"), what="the watches to end")
    lease = router.post("/v1/snapshots", b"{}")
    assert lease.status in {200, 201}, lease
    assert router.get("/v1/stores/op0/scan?limit=5").status == 200
    assert '"end"' in router.text("/v1/stores/op0/export").splitlines()[-1]
    with watch(0) as watcher:
        assert watcher.take().kind == "snapshot"
    health: Any = router.get("/admin/v1/health").body["indicators"]
    found = next(each for each in health if each["name"] == "calls")
    assert (found["state"], found["affected"]) == ("hurt", ["watch"]), "only those above the limit were refused"
    calls = router.router.nodes
    assert {places.of_all.free for places in calls._places.values()} == {node_calls.MAX_IN_FLIGHT}
