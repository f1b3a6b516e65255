"""A background task of a node or a router that dies is reported, and reads go on where they can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import (
    APPLICATION,
    LIMIT_S,
    VERSION,
    ClusterNode,
    ClusterRouter,
    cluster,
    cluster_node,
    cluster_router,
)
from tests.support.cluster.watch import chosen, reading
from tests.support.matrix import in_full
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import DEFAULT_MAX_READ_BYTES, FileStat, LocalFiles
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Announcement
from understudy_shared.bus.redis_bus import RedisBus


class BuggyFiles(LocalFiles):
    """Storage that raises unexpected errors in the threads whose name begins with `victim`."""

    victim: str | None = None

    def stat(self, path: str) -> FileStat | None:
        self._maybe()
        return super().stat(path)

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        self._maybe()
        return super().read(path, max_bytes)

    def _maybe(self) -> None:
        if self.victim is not None and threading.current_thread().name.startswith(self.victim):
            raise RuntimeError("a bug")


def raises(*_: object, **__: object) -> None:
    raise RuntimeError("a bug")


async def raises_async(*_: object, **__: object) -> None:
    raise RuntimeError("a bug")


async def announce(redis_url: str) -> None:
    """Make every node hear of names."""
    bus = RedisBus(redis_url)
    await Gossip(bus, APPLICATION).announce(Announcement(application_id=APPLICATION, query_id="q", stores=[]))
    await bus.close()


class Injection:
    """Ways in which a task of a node can die, by the task's name."""

    def __init__(self, node: ClusterNode, files: BuggyFiles, redis: RedisServer, patch: pytest.MonkeyPatch) -> None:
        self._node = node
        self._files = files
        self._redis = redis
        self._patch = patch

    def follow(self, checkpoint: HandmadeCheckpoint) -> None:
        self._files.victim = "follow"

    def worker(self, checkpoint: HandmadeCheckpoint) -> None:
        self._files.victim = "worker"
        checkpoint.add(VERSION + 1)

    def listen(self, checkpoint: HandmadeCheckpoint) -> None:
        self._patch.setattr(self._node.member.gossip, "handle", raises)
        asyncio.run(announce(self._redis.url))

    def beat(self, checkpoint: HandmadeCheckpoint) -> None:
        for call in ("renew", "acquire", "release"):  # whether it has the lease or not
            self._patch.setattr(self._node.bus, call, raises_async)

    def beat_without_a_last_word(self, checkpoint: HandmadeCheckpoint) -> None:
        self._patch.setattr(self._node.bus, "put_owned", raises_async)


@pytest.mark.parametrize(
    "task",
    in_full(
        ("follow", "worker", "listen", "beat", "beat_without_a_last_word"), if_in=("worker", "beat_without_a_last_word")
    ),
)
def test_a_task_of_a_node_that_dies_makes_it_unready_and_is_reported_while_reads_go_on(
    checkpoint: HandmadeCheckpoint,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
) -> None:
    files = BuggyFiles(checkpoint.path)
    states: set[str] = set()
    with (
        cluster(checkpoint.path, checkpoint.path.parent, redis.url, nodes=1) as known,
        cluster_node(
            checkpoint.path, checkpoint.path.parent / "n2", redis.url, node_id="n2", files=files, may_die=True
        ) as node,
    ):
        known.nodes["n2"] = node
        known.wait_to_rest(copies=2, version=VERSION)
        del known.nodes["n2"]
        with reading(known.router):
            getattr(Injection(node, files, redis, monkeypatch), task)(checkpoint)
            wait_until(lambda: node.get("/livez").status == 503, what="its death", limit_s=LIMIT_S)
            assert "died" in node.not_ready()

            def state() -> str:
                nodes: list[dict[str, str]] = known.router.lag()["nodes"]  # type: ignore[assignment]
                (found,) = {each["state"] for each in nodes if each["node_id"] == "n2"}
                states.add(found)
                return found

            wait_until(lambda: state() == "failed", what=f"failed, seen {states}", limit_s=LIMIT_S)
            wait_until(
                lambda: all(chosen(known.router, word)[0][0] == "n1" for word in WORDS[:8]),
                what="readers to be sent elsewhere",
                limit_s=LIMIT_S,
            )


def _listening(router: ClusterRouter, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(router.router.gossip, "handle", raises)


def _timing(router: ClusterRouter, patch: pytest.MonkeyPatch) -> None:
    # It rests while no request is in flight, as it does now or will within a tick: a read wakes it.
    wait_until(lambda: router.router.clients.is_resting, what="the hops' time to rest", limit_s=LIMIT_S)
    patch.setattr(router.router.clients, "tick", raises)
    router.look_up([WORDS[0]])


KILLS = {"listen to the bus": _listening, "keep the hops' time": _timing}


@pytest.mark.parametrize(("task", "kill"), KILLS.items(), ids=KILLS)
def test_a_task_of_a_router_that_dies_makes_it_unready(
    checkpoint: HandmadeCheckpoint,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    kill: Callable[[ClusterRouter, pytest.MonkeyPatch], None],
) -> None:
    with (
        cluster(checkpoint.path, checkpoint.path.parent, redis.url, nodes=1, routers=0) as known,
        cluster_router(redis.url, may_die=True) as router,
    ):
        known.routers.append(router)
        known.wait_to_rest(copies=1, version=VERSION)
        assert router.look_up([WORDS[0]]).status == 200
        kill(router, monkeypatch)
        wait_until(lambda: router.get("/livez").status == 503, what="its death", limit_s=LIMIT_S)
        assert task in router.not_ready()
        monkeypatch.undo()
