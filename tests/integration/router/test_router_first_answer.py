"""The first answer of a router that starts: it knows where to send the read, or has waited in vain and says so."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, TASKS, VERSION, cluster_node
from tests.support.cluster.served_node import Reply, Served
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_router.serve import LEARNS_WITHIN_MS

CODE = """
import sys
from understudy_router import serve
redis, application, folder, serve.LEARNS_WITHIN_MS = *sys.argv[1:-1], int(sys.argv[-1])
settings = {"redis": redis, "application_id": application, "data_dir": folder}
serve.main({**settings, "port": 0, "shutdown_delay_ms": 0},
           started=lambda router: print(router.host.port, flush=True))
"""
LIMIT_S = 60.0
PATIENT_MS = 30_000
"""A busy machine gets its time to notice that Redis hangs."""

KEY = f"/v1/stores/op0/keys/{WORDS[0]}"


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis with a node on it that has everything."""
    folder = tmp_path_factory.mktemp("first")
    made = HandmadeCheckpoint(folder / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
    with redis_server() as redis, cluster_node(made.path, folder / "data", redis.url, node_id="n1") as node:
        wait_until(lambda: node.not_ready() == "", what="a node that is ready", limit_s=LIMIT_S)
        yield redis


@contextmanager
def fresh_router(redis: RedisServer, folder: Path, *, within_ms: int = LEARNS_WITHIN_MS) -> Iterator[int]:
    """The port of a router that has just been started; nobody has asked it anything."""
    command = [sys.executable, "-c", CODE, redis.url, APPLICATION, str(folder), str(within_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def is_refused(port: int) -> bool:
    """Whether nothing listens at the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def first_answer(port: int, target: str = KEY) -> Reply:
    """The answer of the first connection that is not refused."""
    wait_until(lambda: not is_refused(port), what="the port", limit_s=LIMIT_S, every_s=0.001)
    return Served(port).get(target)


def test_the_first_answer_of_a_fresh_router_is_a_key_that_is_found(living: RedisServer, tmp_path: Path) -> None:
    with fresh_router(living, tmp_path, within_ms=PATIENT_MS) as port:
        reply = first_answer(port)
    assert (reply.status, reply.body.get("found")) == (200, True), reply
