"""How nodes and routers go: they say so, answer on, finish what is in flight, and end; and a task that dies is told."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.support.cluster import (
    APPLICATION,
    LIMIT_S,
    Cluster,
    ClusterNode,
    ClusterRouter,
    cluster,
    cluster_node,
    cluster_router,
    departing,
)
from tests.support.cluster_watch import heard_assignments, holders, reading
from tests.support.counting_query import WORDS
from tests.support.handmade_checkpoint import HandmadeCheckpoint
from tests.support.redis_server import RedisServer, redis_server
from tests.support.spark_queries import wait_until

from understudy_node.checkpoint.files import DEFAULT_MAX_READ_BYTES, FileStat, LocalFiles
from understudy_router.tables import Tables
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.http_service import Departure
from understudy_shared.messages import Announcement

VERSION = 2


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def checkpoint(tmp_path: Path, redis: RedisServer) -> HandmadeCheckpoint:
    redis.flush()
    return HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4).create().add(*range(1, VERSION + 1))


# ---- the order in which a service ends


def get(connection: HTTPConnection, path: str) -> tuple[int, str | None]:
    """Status and `Connection` of a reply."""
    connection.request("GET", path)
    reply = connection.getresponse()
    reply.read()
    return reply.status, reply.headers["connection"]


def accepts(port: int) -> bool:
    """Whether anybody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_service_says_that_it_goes_answers_on_finishes_what_is_in_flight_and_then_ends() -> None:
    done: list[str] = []
    asked, finish, gone = threading.Event(), threading.Event(), threading.Event()

    async def wait_for(event: threading.Event) -> None:
        assert await asyncio.to_thread(event.wait, LIMIT_S)

    async def announce() -> None:
        done.append("announced")
        await wait_for(gone)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        done.append("ended")

    app = FastAPI(lifespan=lifespan)

    @app.get("/quick")
    async def quick() -> None: ...

    @app.get("/slow")
    async def slow() -> None:
        asked.set()
        await wait_for(finish)
        done.append("finished")

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with departing(app, listener, Departure(announce, delay_ms=0)) as service:
        kept, busy = (HTTPConnection("127.0.0.1", port, timeout=LIMIT_S) for _ in range(2))
        assert get(kept, "/quick") == (200, None)
        assert kept.sock is not None, "the connection stays"
        in_flight: list[tuple[int, str | None]] = []
        reader = threading.Thread(target=lambda: in_flight.append(get(busy, "/slow")))
        reader.start()
        assert asked.wait(LIMIT_S)
        service.should_exit = True
        wait_until(lambda: done == ["announced"], what="the announcement")
        assert get(kept, "/quick") == (200, "close"), "it answers on, and sends clients elsewhere"
        gone.set()
        wait_until(lambda: not accepts(port), what="the end of accepting")
        assert done == ["announced"], "nothing ends while a request is in flight"
        finish.set()
        reader.join(LIMIT_S)
        assert in_flight == [(200, "close")]
        wait_until(lambda: done == ["announced", "finished", "ended"], what="the end")


def test_a_departure_that_cannot_be_announced_does_not_keep_a_service_from_its_orderly_end() -> None:
    ended = threading.Event()

    async def announce() -> None:
        raise RuntimeError("a bug")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        ended.set()

    listener = socket.create_server(("127.0.0.1", 0))
    with departing(FastAPI(lifespan=lifespan), listener, Departure(announce, delay_ms=0)):
        pass
    assert ended.wait(LIMIT_S)


STUBBORN = """
import asyncio, sys
from fastapi import FastAPI
from understudy_shared.http_service import BACKLOG, Departure, bound_socket, run

async def announce():
    print("announced", flush=True)

listener = bound_socket("127.0.0.1", 0)
listener.listen(BACKLOG)
print(listener.getsockname()[1], flush=True)
run(FastAPI(), listener, Departure(announce, delay_ms=int(sys.argv[1])))
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_a_service_that_is_about_to_leave_at_once(second: signal.Signals) -> None:
    command = [sys.executable, "-c", STUBBORN, "600000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with closing(HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
                assert get(connection, "/") == (404, None)
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "announced\n"
            assert process.poll() is None
            process.send_signal(second)
            assert process.wait(LIMIT_S) == -second
        finally:
            process.kill()


# ---- leaving


def leave(node: ClusterNode) -> None:
    """What its process does first when it is told to stop."""
    loop = node.member._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(node.member.leave(), loop).result(LIMIT_S)


def lease_holder(redis_url: str) -> str | None:
    """The node that assigns, None while nobody does."""

    async def ask() -> str | None:
        bus = RedisBus(redis_url)
        try:
            return await Gossip(bus, APPLICATION).lease_holder()
        finally:
            await bus.close()

    owner = asyncio.run(ask())
    return None if owner is None else owner.split("/")[0]


def chosen(router: ClusterRouter, word: str) -> list[tuple[str, str]]:
    """Whom a router would ask for a word, in order, and why."""
    choice = router.explain(word)["choice"]
    return [(each["node_id"], each["why"]) for each in choice]


def test_a_node_that_leaves_is_asked_last_and_keeps_its_tasks_while_another_node_assigns(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        holder = lease_holder(redis.url)
        assert holder is not None
        node, router = known.nodes[holder], known.router
        before = holders(router.router.tables.assignment)
        active = [word for word in WORDS if chosen(router, word)[0][0] == holder]
        assert active
        with heard_assignments(redis.url) as heard, reading(router):
            leave(node)
            wait_until(
                lambda: router.living()[holder]["state"] == "leaving", what="the router to hear", limit_s=LIMIT_S
            )
            for word in active:
                (_, (last, why)) = chosen(router, word)
                assert (last, why.endswith("asked late: its node is leaving")) == (holder, True), why
                assert router.look_up([word]).body["served_by"]["port"] != node.port  # type: ignore[index]
            assert "leaving" in node.not_ready()
            assert node.get("/livez").status == 200
            assert node.look_up([WORDS[0]]).status in (200, 421), "it goes on answering"
            wait_until(lambda: lease_holder(redis.url) not in (None, holder), what="another to assign", limit_s=LIMIT_S)
            wait_for_heartbeats(known, 3)
        for assignment in heard:
            assert holders(assignment) == before, "no replica moves for a node that only restarts"


def wait_for_heartbeats(known: Cluster, count: int) -> None:
    """Return when every node was heard so many times more."""
    tables = known.router.router.tables
    enough = {node_id: node.heartbeat.sequence + count for node_id, node in tables.nodes.items()}
    wait_until(
        lambda: all(tables.nodes[node_id].heartbeat.sequence >= least for node_id, least in enough.items()),
        what="heartbeats",
        limit_s=LIMIT_S,
    )


def test_a_node_leaves_in_time_when_the_bus_is_away(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=VERSION)
        node = known.nodes["n1"]
        node.bus.is_cut = True
        leave(node)  # returns
        assert "leaving" in node.not_ready()
        assert node.look_up([WORDS[0]]).status == 200


def test_a_router_that_stops_says_so_and_answers_on(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=VERSION)
        assert known.router.not_ready() == ""
        asyncio.run(known.router.router.leave())
        assert "stopping" in known.router.not_ready()
        assert known.router.get("/livez").status == 200
        assert known.router.look_up([WORDS[0]]).status == 200


# ---- background tasks that die


class BuggyFiles(LocalFiles):
    """Storage that raises what nobody expects of it, in the threads whose name begins with `victim`."""

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
        self._patch.setattr(self._node.node, "announce", raises)
        asyncio.run(announce(self._redis.url))

    def beat(self, checkpoint: HandmadeCheckpoint) -> None:
        for call in ("renew", "acquire", "release"):  # whether it has the lease or not
            self._patch.setattr(self._node.bus, call, raises_async)

    def beat_without_a_last_word(self, checkpoint: HandmadeCheckpoint) -> None:
        self._patch.setattr(self._node.bus, "put_owned", raises_async)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("follow", "failed"),
        ("worker", "failed"),
        ("listen", "failed"),
        ("beat", "failed"),
        ("beat_without_a_last_word", "dead"),
    ],
)
def test_a_task_of_a_node_that_dies_makes_it_unready_and_is_told_while_reads_go_on(
    checkpoint: HandmadeCheckpoint,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    told: str,
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

            wait_until(lambda: state() == told, what=f"{told}, seen {states}", limit_s=LIMIT_S)
            wait_until(
                lambda: all(chosen(known.router, word)[0][0] == "n1" for word in WORDS[:8]),
                what="readers to be sent elsewhere",
                limit_s=LIMIT_S,
            )


def _listening(router: ClusterRouter, patch: pytest.MonkeyPatch, _: RedisServer) -> None:
    patch.setattr(router.router.tables, "heard", raises)


def _keeping(router: ClusterRouter, patch: pytest.MonkeyPatch, _: RedisServer) -> None:
    patch.setattr(router.router.tables, "expire", raises)


def _reading(router: ClusterRouter, patch: pytest.MonkeyPatch, _: RedisServer) -> None:
    patch.setattr(router.router.gossip, "nodes", raises_async)
    router.router.refresh()


def _following(router: ClusterRouter, patch: pytest.MonkeyPatch, _: RedisServer) -> None:
    patch.setattr(Tables, "catalogue_digest", property(raises))


def _polling(router: ClusterRouter, patch: pytest.MonkeyPatch, redis: RedisServer) -> None:
    patch.setattr(router.router.nodes, "heartbeat", raises_async)
    redis.restart()


def _timing(router: ClusterRouter, patch: pytest.MonkeyPatch, _: RedisServer) -> None:
    patch.setattr(router.router.lanes, "tick", raises)


@pytest.mark.parametrize(
    ("task", "kill"),
    [
        ("listen to the bus", _listening),
        ("keep the tables", _keeping),
        ("read the keys again", _reading),
        ("follow the catalogue", _following),
        ("ask nodes for their lag", _polling),
        ("keep the hops' time", _timing),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_task_of_a_router_that_dies_makes_it_unready(
    checkpoint: HandmadeCheckpoint,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    kill: Callable[[ClusterRouter, pytest.MonkeyPatch, RedisServer], None],
) -> None:
    with (
        cluster(checkpoint.path, checkpoint.path.parent, redis.url, nodes=1, routers=0) as known,
        cluster_router(redis.url, may_die=True) as router,
    ):
        known.routers.append(router)
        known.wait_to_rest(copies=1, version=VERSION)
        assert router.look_up([WORDS[0]]).status == 200
        kill(router, monkeypatch, redis)
        wait_until(lambda: router.get("/livez").status == 503, what="its death", limit_s=LIMIT_S)
        assert task in router.not_ready()
        monkeypatch.undo()
