"""The first answer of a router that starts: it knows where to send the read, or has waited in vain and says so."""

from __future__ import annotations

import inspect
import re
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
from tests.support.matrix import in_full
from tests.support.services.deploy_files import SERVICES
from tests.support.services.supervised import LIMIT_S, is_refused
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_router.serve import LEARNS_WITHIN_MS
from understudy_shared.bus.redis_bus import RedisBus

CODE = """
import sys
from understudy_router import serve
redis, application, folder, processes, serve.LEARNS_WITHIN_MS = *sys.argv[1:-1], int(sys.argv[-1])
settings = {"redis": redis, "application_id": application, "data_dir": folder, "processes": int(processes)}
serve.main({**settings, "port": 0, "shutdown_delay_ms": 0},
           started=lambda router: print(router.host.port, flush=True))
"""
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
def fresh_router(
    redis: RedisServer, folder: Path, *, processes: int = 1, within_ms: int = LEARNS_WITHIN_MS
) -> Iterator[int]:
    """The port of a router that has just been started; nobody has asked it anything."""
    command = [sys.executable, "-c", CODE, redis.url, APPLICATION, str(folder)]
    command += [str(processes), str(within_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def first_answer(port: int, target: str = KEY) -> Reply:
    """The answer of the first connection that is not refused."""
    wait_until(lambda: not is_refused(port), what="the port", limit_s=LIMIT_S, every_s=0.001)
    return Served(port).get(target)


@pytest.mark.parametrize("processes", in_full((1, 2), if_in=("2",), names=("1", "2")))
def test_the_first_answer_of_a_fresh_router_is_a_key_that_is_found(
    processes: int, living: RedisServer, tmp_path: Path
) -> None:
    with fresh_router(living, tmp_path, processes=processes, within_ms=PATIENT_MS) as port:
        reply = first_answer(port)
    assert (reply.status, reply.body.get("found")) == (200, True), reply


def test_the_first_answer_while_redis_hangs_is_a_key_that_is_found_by_what_was_remembered(
    living: RedisServer, tmp_path: Path
) -> None:
    with fresh_router(living, tmp_path):
        # The assignment, the catalogue and where the nodes are.
        wait_until(lambda: len(list(tmp_path.glob("*.remembered"))) == 3, what="it to remember", limit_s=LIMIT_S)
    living.pause()
    try:
        with fresh_router(living, tmp_path, within_ms=PATIENT_MS) as port:
            reply = first_answer(port)
    finally:
        living.resume()
    assert (reply.status, reply.body.get("found")) == (200, True), reply


@pytest.mark.parametrize("processes", in_full((1, 2), if_in=("1",), names=("1", "2")))
def test_a_router_that_hears_of_nobody_says_that_it_is_alive_and_knows_nothing(
    processes: int, redis: RedisServer, tmp_path: Path
) -> None:
    with fresh_router(redis, tmp_path, processes=processes) as port:
        assert first_answer(port, "/livez").status == 200
        reply = first_answer(port)
    assert (reply.status, reply.problem) == (503, "not-initialised")


def test_it_waits_for_longer_than_for_a_redis_that_hangs_and_not_as_long_as_a_probe_does() -> None:
    probe = re.search(r"timeout=(\d+)", SERVICES["router-1"]["healthcheck"]["test"][-1])
    assert probe is not None
    call_ms = inspect.signature(RedisBus).parameters["call_timeout_ms"].default
    assert call_ms < LEARNS_WITHIN_MS < 1000 * int(probe[1])
