"""A router of two worker processes over a real Redis and a real node: one port for its readers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, TASKS, VERSION, ClusterNode, cluster_node
from tests.support.cluster.served_node import Served
from tests.support.services.process_table import processes_below
from tests.support.services.raw_http import RawClient
from tests.support.services.supervised import LIMIT_S, is_refused, kill, wait_to_be_gone
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

CODE = """
import sys
from understudy_router.serve import main
redis, application, folder = sys.argv[1:]
main({"redis": redis, "application_id": application, "port": 0, "processes": 2, "shutdown_delay_ms": 100,
      "data_dir": folder}, started=lambda router: print(router.host.port, flush=True))
"""
PROGRAM = (sys.executable, "-m", "understudy")
BY_ASGI = b"content-length: 0\r\n"
"""A GET with a body is answered by ASGI."""

PAUSE_S = 0.002
"""Between two reads of a reader: the worker that starts needs a core, too."""

PASSING = re.compile(rb'"time_lag_ms":"?\d+"?')
FOUND = 'understudy_requests_total{op="lookup",outcome="found",store="op0"}'


class RouterProcess(Served):
    """The supervisor of a router, a client of the port that its workers share, and one of each worker's own port."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        super().__init__(port)
        self.process = process
        self.port = port
        self.own = [Served(port + 1), Served(port + 2)]

    def workers(self) -> list[int]:
        return processes_below(self.process.pid)

    def found(self) -> list[float]:
        """How many lookups each worker has found."""
        metrics = [re.search(rf"(?m)^{re.escape(FOUND)} (\S+)$", own.text("/metrics")) for own in self.own]
        return [float(each[1]) if each else 0.0 for each in metrics]

    def wait_to_be_ready(self) -> None:
        wait_until(lambda: all(map(_is_ready, self.own)), what="readiness", limit_s=LIMIT_S)


def _is_ready(worker: Served) -> bool:
    try:
        return worker.not_ready() == ""
    except OSError:
        return False


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, module_redis: RedisServer) -> Iterator[ClusterNode]:
    folder = tmp_path_factory.mktemp("processes")
    made = HandmadeCheckpoint(folder / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
    with cluster_node(made.path, folder / "data", module_redis.url, node_id="n1") as found:
        yield found


@contextmanager
def router_process(redis: str, folder: Path) -> Iterator[RouterProcess]:
    """A router of two workers that is ready, until the end of the block."""
    command = [sys.executable, "-c", CODE, redis, APPLICATION, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = RouterProcess(process, int(process.stdout.readline()))
        found.wait_to_be_ready()
        yield found
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def router(
    node: ClusterNode, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RouterProcess]:
    with router_process(module_redis.url, tmp_path_factory.mktemp("router")) as found:
        yield found


def ask(client: RawClient, target: str, headers: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    client.send(b"GET %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (target.encode(), headers))
    status, found, body = client.reply()
    found.pop("content-length")
    return status, found, PASSING.sub(b'"time_lag_ms":0', body)


TARGETS = [
    f"/v1/stores/op0/keys/{WORDS[0]}",
    f"/v1/stores/op0/keys/{WORDS[0]}?max_lag=0&longs=string",
    "/v1/stores/op0/keys/no-such-word",
    "/v1/stores/op0/lookup?key=[1]",
    "/v1/stores/op0/lookup?key=[",
    f"/v1/stores/op0/keys/{WORDS[0]}?max_lag=x",
    "/v1/stores/nowhere/keys/a",
]


def test_every_worker_answers_alike_in_both_ways(router: RouterProcess) -> None:
    with ExitStack() as clients:
        opened = [clients.enter_context(RawClient(port)) for port in (router.port, router.port + 1, router.port + 2)]
        for target in TARGETS:
            answers = [ask(client, target, way) for client in opened for way in (b"", BY_ASGI)]
            assert all(answer == answers[0] for answer in answers), target
        batch = b'{"keys": [["' + WORDS[0].encode() + b'"], ["no-such-word"], 3]}'
        results = router.post("/v1/stores/op0/lookup", batch).body["results"]
        assert isinstance(results, list)
        assert [item["status"] for item in results] == [200, 404, 400]


def test_each_worker_counts_its_own_reads_and_the_shared_port_names_the_ports_to_scrape(router: RouterProcess) -> None:
    before = router.found()
    for number, count in enumerate((1, 3)):
        for word in WORDS[:count]:
            assert router.own[number].get(f"/v1/stores/op0/keys/{word}").status == 200
    assert [now - then for now, then in zip(router.found(), before, strict=True)] == [1.0, 3.0]
    refused = router.get("/metrics")
    assert (refused.status, refused.problem) == (421, "shared-port")
    assert refused.body["fix"] == f"Scrape each of the ports {router.port + 1}, {router.port + 2}"


class Reader:
    """Reads on one connection; one that ends without an answer is opened again, and its read sent again, once."""

    def __init__(self, router: RouterProcess) -> None:
        self.answered = 0
        self.again = 0
        self.failed: list[str] = []
        self._port = router.port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        client = RawClient(self._port)
        target = f"/v1/stores/op0/keys/{WORDS[0]}"
        try:
            while not self._ended.wait(PAUSE_S):
                try:
                    reply = ask(client, target)
                except (ConnectionError, OSError):
                    client.socket.close()
                    client = RawClient(self._port)
                    self.again += 1
                    reply = ask(client, target)
                if reply[0] != 200:
                    self.failed.append(str(reply))
                self.answered += 1
        except Exception as error:  # reported by the test: a thread cannot fail it
            self.failed.append(repr(error))
        finally:
            client.socket.close()


def test_killing_a_worker_under_reads_costs_its_readers_one_more_try_on_a_new_connection(router: RouterProcess) -> None:
    readers = [Reader(router) for _ in range(8)]
    try:
        wait_until(lambda: all(reader.answered > 20 for reader in readers), what="answers", limit_s=LIMIT_S)
        first = router.workers()
        kill(first[0])
        wait_until(lambda: set(router.workers()) > {first[1]}, what="a restart", limit_s=LIMIT_S)
        router.wait_to_be_ready()
        counts = [reader.answered for reader in readers]
        wait_until(
            lambda: all(reader.answered > count for reader, count in zip(readers, counts, strict=True)),
            what="answers",
            limit_s=LIMIT_S,
        )
    finally:
        for reader in readers:
            reader.end()
    assert [reader.failed for reader in readers] == [[]] * len(readers)
    assert max(reader.again for reader in readers) <= 1


def test_any_worker_hands_a_drain_on(router: RouterProcess) -> None:
    for wanted in (True, False, True, False):
        reply = router.post("/admin/v1/nodes/n1/drain", b'{"drain": %b}' % str(wanted).lower().encode())
        assert (reply.status, reply.body["draining"]) == (202, wanted)


def test_the_command_says_where_it_routes_and_ends_in_good_order_with_all_its_workers(
    node: ClusterNode, module_redis: RedisServer, tmp_path: Path
) -> None:
    command = [*PROGRAM, "router", "--redis", module_redis.url, "--application-id", APPLICATION, "--port", "0"]
    command += ["--data-dir", str(tmp_path), "--processes", "2", "--router-id", "east"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().removeprefix("Routing at ")
            router = RouterProcess(process, int(url.rpartition(":")[2]))
            router.wait_to_be_ready()
            workers = router.workers()
            assert len(workers) == 2
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert "worker=0 router_id=east action=leaving" in log
    assert "worker=1 router_id=east action=leaving" in log
    assert [line for line in log.splitlines() if "router_id=east" not in line] == []
    assert "worker 1 answers at port" in log
    wait_to_be_gone(workers)
    assert is_refused(router.port)
