"""The parts of the proof that act, each alone: the proxy, and a node's way to the checkpoint."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.matrix import in_full
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import state_stores_unloaded, wait_until
from tests.system.proof.commit_watch import CommitWatch
from tests.system.proof.history import Commit, Watched
from tests.system.proof.processes import Proxies
from tests.system.proof.proxy import CUT, Toxics
from tests.system.proof.query import start
from tests.system.proof.storage import FolderStorage
from tests.system.proof.views import View, damaged, missing

SILENCE_S = 0.3


class Server(ThreadingHTTPServer):
    """Answers every GET by `answer(path)`; counts what it heard, but for scans and exports beside the reads."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], tuple[int, dict[str, object]]]) -> None:
        self.heard: list[str] = []
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # the base class calls it so
                if "/scan?" not in self.path and "/export?" not in self.path:
                    heard.append(self.path)
                status, document = answer(self.path)
                body = json.dumps(document).encode()
                self.send_response(status)
                problem = "application/problem+json" if "type" in document else "application/json"
                self.send_header("content-type", problem)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def handle_error(self, *_: object) -> None:
        """A connection that was reset is what these tests are about."""

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server(lambda _: (200, {"ok": True}))
    yield served
    served.end()


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[Proxies]:
    made = Proxies(tmp_path / "proxies.log")
    yield made
    made.end()


@pytest.fixture
def client(server: Server, proxies: Proxies) -> Iterator[http.client.HTTPConnection]:
    """A kept connection through the proxy `it`, over which one answer has come already."""
    connection = http.client.HTTPConnection("127.0.0.1", proxies.open("it", server.server_port), timeout=30)
    assert get(connection) == 200
    yield connection
    connection.close()


def get(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/")
    reply = connection.getresponse()
    reply.read()
    return reply.status


def impatient(connection: http.client.HTTPConnection) -> None:
    """Make silence of the connection an error from now on."""
    assert connection.sock is not None
    connection.sock.settimeout(SILENCE_S)


def test_what_is_cut_off_vanishes_while_the_connection_stays_and_healing_resets_it(
    client: http.client.HTTPConnection, server: Server, proxies: Proxies
) -> None:
    proxies.set("it", CUT)
    impatient(client)
    with pytest.raises(TimeoutError):
        get(client)
    assert len(server.heard) == 1, "nothing came through"
    proxies.set("it", Toxics())
    assert client.sock is not None
    with pytest.raises(ConnectionResetError):
        client.sock.recv(1)
    client.close()
    assert get(client) == 200


FORMATS = (ROCKSDB_CHANGELOG_V2, HDFS_V1)


@pytest.fixture(
    scope="module",
    params=in_full(FORMATS, if_in=(ROCKSDB_CHANGELOG_V2.id,), names=[each.id for each in FORMATS]),
)
def state_format(request: pytest.FixtureRequest) -> StateFormat:
    found: StateFormat = request.param
    return found


@pytest.fixture(scope="module")
def checkpoint(
    spark: SparkSession, state_format: StateFormat, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Commit | Watched]]:
    """The proof's query after some batches, stopped and started once; and what a watcher saw of its commits."""
    folder = tmp_path_factory.mktemp("query") / "proof"
    seen: list[Commit | Watched] = []
    watch = CommitWatch(FolderStorage(folder, {}), seen.append)
    for batches in (4, 8):
        with state_stores_unloaded(spark):
            query = start(spark, str(folder), state_format, 10)
            wait_until(lambda least=batches: watch.version >= least, what="commits")  # type: ignore[misc]
            query.stop()
    watch.end()
    return folder, seen


def test_a_view_leads_to_the_checkpoint_to_nowhere_or_to_a_copy_with_a_bad_file(
    checkpoint: tuple[Path, list[Commit | Watched]], tmp_path: Path
) -> None:
    real = checkpoint[0]
    view = View(tmp_path / "node-1" / "proof", real)
    files = {path.relative_to(real): path.read_bytes() for path in real.rglob("[!.]*") if path.is_file()}

    def seen() -> dict[Path, bytes]:
        return {path: (view.path / path).read_bytes() for path in files if (view.path / path).exists()}

    assert seen() == files
    view.vanish()
    assert seen() == {}
    view.spoil(missing(3))
    gone = set(files) - set(seen())
    assert {path.name.split("_")[0].split(".")[0] for path in gone} == {"3"}
    assert len(gone) == 6, "one changelog of each partition"
    view.heal()
    view.spoil(damaged(3))
    assert {path for path, content in files.items() if seen()[path] != content} == gone
    view.heal()
    assert seen() == files
