"""How nodes and routers go: they say so, answer on, finish what is in flight, and end."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, VERSION, Cluster, ClusterNode, cluster, departing
from tests.support.cluster.watch import chosen, heard_assignments, holders, reading
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.server.service import Departure

# ---- the order in which a service ends


def get(connection: HTTPConnection, path: str) -> tuple[int, str | None]:
    """Status and `Connection` of a reply."""
    connection.request("GET", path)
    reply = connection.getresponse()
    reply.read()
    return reply.status, reply.headers["connection"]


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
        # Another process may have the port at once, so no connection tells.
        wait_until(lambda: listener.fileno() < 0, what="the end of accepting")
        assert done == ["announced"], "nothing ends while a request is in flight"
        finish.set()
        reader.join(LIMIT_S)
        assert in_flight == [(200, "close")]
        wait_until(lambda: done == ["announced", "finished", "ended"], what="the end")


STUBBORN = """
import asyncio, sys
from fastapi import FastAPI
from understudy_shared.server.service import BACKLOG, Departure, bound_socket, run

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
    """What a node's process does first when it gets SIGTERM."""
    loop = node.member._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(node.member.leave(), loop).result(LIMIT_S)


def lease_holder(redis_url: str) -> str | None:
    """The node that assigns, None while no node does."""

    async def ask() -> str | None:
        bus = RedisBus(redis_url)
        try:
            return await Gossip(bus, APPLICATION).lease_holder()
        finally:
            await bus.close()

    owner = asyncio.run(ask())
    return None if owner is None else owner.split("/")[0]


PATIENT = {
    "hop_timeout_ms": 20_000,
    "deadline_ms": 20_000,
    "suspect_after_ms": 60_000,
    "hedge_after_ms": 0,
    "retry_percent": 0,
    "retry_per_s": 0,
}
"""Settings of a router that asks no second node because an answer takes long, as it may on a loaded machine."""


def test_a_node_that_leaves_is_asked_last_and_keeps_its_tasks_while_another_node_assigns(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, routers=0) as known:
        known.start_router(**PATIENT)
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
