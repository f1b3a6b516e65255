"""The parts of the proof that act, each alone: proxy, readers, truth, commit watch, a node's way to the checkpoint."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.matrix import in_full
from tests.support.repository import ROOT
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import committed_batches, state_stores_unloaded, wait_until
from tests.system.proof.client_ways import BARE
from tests.system.proof.commit_watch import CommitWatch
from tests.system.proof.fake_clock import FakeClock
from tests.system.proof.history import Commit, History, Meta, Watched
from tests.system.proof.history_file import load as load_history
from tests.system.proof.keys import STORE
from tests.system.proof.processes import Proxies, Talking
from tests.system.proof.proxy import CUT, Toxics
from tests.system.proof.query import start
from tests.system.proof.run import RunOptions, recording
from tests.system.proof.schedule import Schedule
from tests.system.proof.storage import FolderStorage
from tests.system.proof.truth import write_truth
from tests.system.proof.truth_of_state import Truth
from tests.system.proof.views import View, damaged, missing

from understudy_shared.base.ports import free_port
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.position import Position

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


def test_one_way_may_be_cut_so_that_questions_arrive_and_answers_do_not(
    client: http.client.HTTPConnection, server: Server, proxies: Proxies
) -> None:
    proxies.set("it", Toxics(cut_to_client=True))
    impatient(client)
    with pytest.raises(TimeoutError):
        get(client)
    wait_until(lambda: len(server.heard) == 2, what="the question")


def test_a_refusing_proxy_resets_what_is_open_refuses_what_is_new_and_listens_again_at_its_port(
    client: http.client.HTTPConnection, proxies: Proxies
) -> None:
    proxies.set("it", Toxics(refuse=True))
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        get(client)
    client.close()
    with pytest.raises(ConnectionRefusedError):
        get(client)
    client.close()
    proxies.set("it", Toxics())
    assert get(client) == 200


def test_a_resetting_proxy_takes_connections_and_breaks_them(
    client: http.client.HTTPConnection, proxies: Proxies
) -> None:
    proxies.set("it", Toxics(reset=True))
    for _ in range(2):
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            get(client)
        client.close()


def test_an_open_connection_is_answered_by_500_without_the_server_hearing_of_it(
    client: http.client.HTTPConnection, server: Server, proxies: Proxies
) -> None:
    proxies.set("it", Toxics(answer=500))
    assert [get(client), get(client)] == [500, 500]
    assert len(server.heard) == 1


def test_a_store_that_throttles_says_so_and_gives_no_body_to_a_head(
    client: http.client.HTTPConnection, server: Server, proxies: Proxies
) -> None:
    proxies.set("it", Toxics(answer=503))
    for method, has_body in (("HEAD", False), ("GET", True), ("HEAD", False)):
        client.request(method, "/")
        reply = client.getresponse()
        assert (reply.status, b"<Code>SlowDown</Code>" in reply.read()) == (503, has_body)
    proxies.set("it", Toxics())
    client.close()
    assert get(client) == 200
    assert len(server.heard) == 2


def test_delay_and_bandwidth_hold_up_an_answer_at_least_so_long(
    client: http.client.HTTPConnection, proxies: Proxies
) -> None:
    proxies.set("it", Toxics(delay_ms=100))
    began_s = time.monotonic()
    assert get(client) == 200
    assert time.monotonic() - began_s >= 0.2
    proxies.set("it", Toxics(bytes_per_s=1000))
    began_s = time.monotonic()
    assert get(client) == 200
    assert time.monotonic() - began_s >= 0.1, "more than a hundred bytes each way"


def position_of(version: int) -> str:
    return Position(ApplicationId("proof"), Lineage("life"), version, 1000 * version).encode()


def an_answer(version: int) -> dict[str, object]:
    """An answer in the form that routers give."""
    return {
        "found": True, "value": {"count": 1}, "partition": 0, "version": version,
        "committed_at": "2026-01-01T00:00:00.000001Z", "position": position_of(version),
        "lag": {"offset_lag": 0, "time_lag_ms": 3},
        "served_by": {"node_id": "node-1", "role": "active"},
    }  # fmt: skip


def read_at(routers: dict[str, int], folder: Path, *, until: Callable[[], bool]) -> History:
    """Read from some routers until something is so; what was recorded."""
    with recording(folder, Schedule("none", 1, (), 0.0), RunOptions(rate=400)):
        load = Talking(
            "load",
            "tests.system.proof.load",
            ["counts", json.dumps(routers), str(folder / "load"), "400", "1", "", BARE],
            folder / "log",
        )
        wait_until(lambda: until() or load.order("counts") == "", what="enough reads", limit_s=60)
        load.end()
    return load_history(folder)


def test_readers_carry_their_positions_and_record_what_each_answer_stated(tmp_path: Path) -> None:
    version = iter(range(1, 1_000_000))
    served = Server(lambda _: (200, an_answer(next(version))))
    history = read_at({"router-1": served.server_port}, tmp_path, until=lambda: len(served.heard) > 300)
    served.end()
    assert len(history.reads) == len(served.heard)
    assert {read.outcome for read in history.reads} == {"found"}
    carried = [read for read in history.reads if read.bounds.min_version is not None]
    assert carried
    newest: dict[int, int] = {}
    for read in sorted(history.reads, key=lambda read: (read.session, read.seq)):
        if read.bounds.min_version is not None:
            assert read.bounds.min_version == newest[read.session]
        assert read.position_version is not None
        newest[read.session] = max(read.position_version, newest.get(read.session, 0))
    first = history.reads[0]
    assert (first.node, first.role, first.committed_at_us, first.time_lag_ms) == (
        "node-1",
        "active",
        1767225600000001,
        3,
    )


def test_a_reader_turns_to_the_other_router_and_fails_only_when_there_is_none(tmp_path: Path) -> None:
    leaving = Server(lambda _: (503, {"type": "not-initialised", "detail": "stopping", "state": "stopping"}))
    served = Server(lambda _: (200, an_answer(7)))
    routers = {"gone": free_port(), "leaving": leaving.server_port, "there": served.server_port}
    (tmp_path / "some").mkdir()
    history = read_at(routers, tmp_path / "some", until=lambda: len(served.heard) > 100)
    served.end()
    assert {(read.outcome, read.router) for read in history.reads} == {("found", "there")}
    assert leaving.heard
    heard = len(leaving.heard)
    (tmp_path / "none").mkdir()
    alone = {"gone": routers["gone"], "leaving": leaving.server_port}
    history = read_at(alone, tmp_path / "none", until=lambda: len(leaving.heard) > heard + 50)
    leaving.end()
    assert {read.outcome for read in history.reads} == {"failed"}


def test_a_list_is_read_page_by_page_and_anew_when_the_version_of_its_pages_is_gone(tmp_path: Path) -> None:
    gone = iter([True])

    def answer(path: str) -> tuple[int, dict[str, object]]:
        is_first = "cursor=" not in path
        if not is_first and next(gone, False):
            return 410, {"type": "version-gone", "candidates": []}
        page = {name: said for name, said in an_answer(7).items() if name != "value"}
        cursor = "second" if is_first else None
        return 200, {**page, "values": [{"value": 1 if is_first else 2}], "next_cursor": cursor}

    served = Server(answer)
    history = read_at({"router-1": served.server_port}, tmp_path, until=lambda: len(served.heard) > 100)
    served.end()
    assert {read.pages for read in history.reads} == {2}
    assert all(read.value == {"values": [{"value": 1}, {"value": 2}]} for read in history.reads)
    assert len(served.heard) == 2 * len(history.reads) + 2, "one began anew"


def test_a_typed_refusal_is_recorded_with_every_candidate_and_its_reason(tmp_path: Path) -> None:
    candidates = [{"node_id": "node-1", "reason": "lag-exceeded"}]
    served = Server(lambda _: (503, {"type": "no-acceptable-replica", "candidates": candidates}))
    history = read_at({"router-1": served.server_port}, tmp_path, until=lambda: len(served.heard) > 50)
    served.end()
    assert {(read.outcome, read.problem, read.candidates) for read in history.reads} == {
        ("refused", "no-acceptable-replica", (("node-1", "lag-exceeded"),))
    }


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


def test_the_truth_is_every_version_of_every_key_as_spark_reads_it(
    spark: SparkSession, state_format: StateFormat, checkpoint: tuple[Path, list[Commit | Watched]], tmp_path: Path
) -> None:
    write_truth(spark, checkpoint[0], state_format, tmp_path / "truth")
    truth = Truth.load(tmp_path / "truth")
    assert (truth.first, truth.last) == (1, committed_batches(checkpoint[0])[-1] + 1)
    for version in range(1, truth.last + 1):
        counted = sum(value["count"] for value in truth.state(STORE, version).values())
        assert counted == 60 * version, "no slot is removed so early"


def test_a_commit_is_seen_between_two_looks_and_in_order(checkpoint: tuple[Path, list[Commit | Watched]]) -> None:
    folder, seen = checkpoint
    history = History(Meta(1, {}))
    for each in seen:
        history.add(each)
    assert [commit.version for commit in history.commits] == [batch + 1 for batch in committed_batches(folder)]
    assert all(commit.not_before_ms is not None for commit in history.commits)
    assert all((commit.not_before_ms or 0) < commit.seen_ms for commit in history.commits)
    assert history.watched_until_ms is not None
    assert history.watched_until_ms >= history.commits[-1].seen_ms


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


def test_a_clock_that_jumps_shifts_wall_time_at_once_and_leaves_monotonic_time_alone(tmp_path: Path) -> None:
    clock = FakeClock(tmp_path / "clock")
    script = (
        "import sys, time, pathlib\n"
        "from tests.system.proof.fake_clock import shift_clock\n"
        "shift_clock(pathlib.Path(sys.argv[1]))\n"
        "for line in sys.stdin: print(time.time(), time.time_ns() / 1e9, time.monotonic(), flush=True)"
    )
    command = [sys.executable, "-c", script, str(clock.file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for shift_s in (0, 3600, -3600):
            clock.jump(shift_s)
            before = time.time(), time.monotonic()
            process.stdin.write("\n")
            process.stdin.flush()
            wall_s, wall_of_ns_s, monotonic_s = map(float, process.stdout.readline().split())
            after = time.time(), time.monotonic()
            assert before[0] <= wall_s - shift_s <= after[0]
            assert before[0] <= wall_of_ns_s - shift_s <= after[0]
            assert before[1] <= monotonic_s <= after[1]
        process.stdin.close()
