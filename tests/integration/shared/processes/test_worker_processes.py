"""Several worker processes under one supervisor, whatever happens to one of them."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.services.raw_http import RawClient
from tests.support.services.supervised import (
    Supervised,
    is_refused,
    kill,
    supervised,
    wait_to_be_gone,
    who,
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Supervised]:
    with supervised(tmp_path / "echo") as found:
        found.wait_to_be_ready()
        yield found


def connections(service: Supervised, clients: ExitStack) -> dict[int, RawClient]:
    """Connections to the shared port, one for each worker."""
    found: dict[int, RawClient] = {}

    def has_both() -> bool:
        client = clients.enter_context(service.connect())
        found[who(client)["worker"]] = client
        return found.keys() == {0, 1}

    service.wait_for(has_both, what="a connection to each worker")
    return found


def test_the_workers_share_a_port_and_each_answers_alone_at_its_own(service: Supervised) -> None:
    with ExitStack() as clients:
        assert connections(service, clients).keys() == {0, 1}
    assert [{own.get("/who").body["worker"] for _ in range(4)} for own in service.own] == [{0}, {1}]


def test_a_killed_worker_ends_its_connections_alone_and_is_started_again(service: Supervised) -> None:
    with ExitStack() as clients:
        found = connections(service, clients)
        pid = service.pids()[1]
        kill(pid)
        assert found[1].is_closed()
        assert who(found[0])["worker"] == 0
        wait_to_be_gone([pid])
        assert service.get("/who").status == 200, "new connections go to the other one"
    service.wait_to_be_ready()
    assert service.pids()[1] != pid
    assert "worker 1 was killed by SIGKILL; it starts again in 0 ms" in service.log()


def test_reads_in_flight_are_finished_when_it_is_asked_to_end_and_nothing_is_left(service: Supervised) -> None:
    with ExitStack() as clients:
        found = connections(service, clients)
        for client in found.values():
            client.send(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        pids = service.pids()
        service.process.send_signal(signal.SIGTERM)
        service.wait_for(lambda: is_refused(service.port), what="the port to close")
        service.say("go")
        assert [client.reply()[0] for client in found.values()] == [200, 200]
    assert service.process.wait(60) == -signal.SIGTERM
    wait_to_be_gone(pids.values())


def test_it_answers_on_for_its_delay_and_says_that_it_goes(tmp_path: Path) -> None:
    with supervised(tmp_path / "echo", delay_ms=60_000) as service:
        service.wait_to_be_ready()
        pids = service.pids()
        service.process.send_signal(signal.SIGTERM)
        service.wait_for(lambda: all(own.get("/readyz").status == 503 for own in service.own), what="both to say it")
        assert service.get("/who").status == 200
        kill(pids[0], signal.SIGTERM)  # process managers send the signal to all processes
        assert service.own[0].get("/who").status == 200
        service.process.send_signal(signal.SIGTERM)  # the second one ends it at once
        assert service.process.wait(60) == -signal.SIGTERM
        wait_to_be_gone(pids.values())


def test_no_worker_outlives_a_supervisor_that_is_killed(service: Supervised) -> None:
    pids = service.pids()
    kill(pids[1], signal.SIGSTOP)  # one that could not notice by itself
    service.process.kill()
    wait_to_be_gone(pids.values())
    assert is_refused(service.port)


def test_a_worker_that_keeps_ending_waits_longer_and_longer_and_the_others_serve(service: Supervised) -> None:
    service.say("ends-1")
    kill(service.pids()[1])
    service.wait_for_log("worker 1 ended with exit code 7; it starts again in 1000 ms")
    assert service.get("/who").body["worker"] == 0
    service.take_back("ends-1")
    service.wait_to_be_ready()


def test_a_worker_that_waits_for_its_restart_is_not_started_once_the_service_is_to_end(service: Supervised) -> None:
    service.say("ends-1")
    kill(service.pids()[1])
    service.wait_for_log("worker 1 ended with exit code 7; it starts again in 1000 ms")
    service.take_back("ends-1")
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == -signal.SIGTERM
    assert service.log().count("file descriptors worker=1") == 1


def test_a_worker_that_cannot_be_started_again_is_tried_again_and_the_others_serve(service: Supervised) -> None:
    supervisor, pid = service.process.pid, service.pids()[1]
    soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (4, hard))
    kill(pid)
    service.wait_for_log("worker 1 could not be started: [Errno 24] Too many open files; it starts again in 500 ms")
    assert service.get("/who").body["worker"] == 0
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
    service.wait_to_be_ready()


def test_a_worker_that_says_that_it_cannot_go_on_is_replaced_at_once(service: Supervised) -> None:
    pid = service.pids()[1]
    service.say("dead-1")
    service.wait_for_log("worker 1 is killed: it says at /livez that it cannot go on")
    wait_to_be_gone([pid])
    service.wait_for_log("worker 1 was killed by SIGKILL; it starts again in 500 ms")  # it says so from the start, too
    service.take_back("dead-1")
    service.wait_to_be_ready()


def test_a_worker_that_is_silent_for_too_long_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "echo"
    folder.mkdir()
    (folder / "impatient").touch()
    with supervised(folder) as service:
        service.wait_to_be_ready()
        pid = service.pids()[1]
        kill(pid, signal.SIGSTOP)
        service.wait_for_log("worker 1 is killed: for 2 s it has not said at /livez that it is alive")
        wait_to_be_gone([pid])
        service.wait_to_be_ready()


@pytest.mark.parametrize(
    ("file", "words", "how"),
    [
        ("refuses-1", "it will not (here). Take the file away", "ended with exit code 1"),
        (
            "ends-1",
            "the service did not start (worker 1 ended with exit code 7). The log above says why",
            "ended with exit code 7",
        ),
        (
            "dead-1",
            "the service did not start (worker 1 was killed by SIGKILL). The log above says why",
            "is killed: it says at /livez that it cannot go on",
        ),
    ],
)
def test_a_worker_that_cannot_start_ends_the_service_at_once_with_its_words(
    tmp_path: Path, file: str, words: str, how: str
) -> None:
    folder = tmp_path / "echo"
    folder.mkdir()
    for name in (file, "waits-1"):
        (folder / name).touch()
    with supervised(folder, delay_ms=3_600_000) as service:
        service.wait_for_log("worker 0 answers at port")
        service.take_back("waits-1")
        assert service.process.wait(30) == 3
        assert service.process.stdout is not None
        assert service.process.stdout.readline() == f"{words}\n"
        assert f"worker 1 {how}" in service.log()
        assert is_refused(service.port)


def test_every_line_of_the_log_says_which_worker_it_is_of(service: Supervised) -> None:
    for number in (0, 1):
        assert f" INFO file descriptors worker={number} action=file-limit" in service.log()
