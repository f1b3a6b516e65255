"""Several worker processes under one supervisor: one service to the outside, whatever happens to one of them."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.services.raw_http import RawClient
from tests.support.services.supervised import (
    ASKED,
    Supervised,
    is_refused,
    kill,
    supervised,
    wait_to_be_gone,
    who,
)

RESTARTED = 'understudy_worker_restarts_total{reason="killed"}'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Supervised]:
    with supervised(tmp_path / "echo") as found:
        found.wait_to_be_ready()
        yield found


def connections(service: Supervised, count: int, clients: ExitStack) -> dict[int, list[RawClient]]:
    """Open connections, by the worker that has each."""
    found: dict[int, list[RawClient]] = {}
    for _ in range(count):
        client = clients.enter_context(service.connect())
        found.setdefault(who(client)["worker"], []).append(client)
    return found


def test_connections_that_stay_are_shared_evenly_by_the_workers(service: Supervised) -> None:
    with ExitStack() as clients:
        found = connections(service, 12, clients)
        assert Counter({number: len(some) for number, some in found.items()}) == {0: 6, 1: 6}


def test_the_metrics_are_the_sum_over_the_workers_whichever_answers_and_stay_when_one_is_killed(
    service: Supervised,
) -> None:
    with ExitStack() as clients:
        for some in connections(service, 5, clients).values():
            for client in some:
                who(client)
        assert [service.metric(ASKED) for _ in range(4)] == [10.0] * 4
        assert service.metric("understudy_router_in_flight") == 2
        kill(service.pids()[0])
    asked = service.metric(ASKED)
    assert asked >= 10
    service.wait_for(lambda: service.metric(RESTARTED) == 1, what="the restart")
    service.wait_for(lambda: service.metric("understudy_worker_processes") == 2, what="both workers")
    assert service.metric(ASKED) >= asked


def test_the_metrics_of_the_process_include_the_supervisors_own(service: Supervised) -> None:
    """The workers of this service say nothing of their processes, so what is there is the supervisor's."""
    assert service.metric("process_cpu_seconds_total") > 0
    assert service.metric("process_resident_memory_bytes") > 1024 * 1024
    assert service.metric("process_open_fds") > 0
    assert service.metric("process_start_time_seconds") > 0


def test_it_is_ready_only_while_every_worker_is_and_says_which_is_not(service: Supervised) -> None:
    service.say("unready-1")
    assert {service.not_ready() for _ in range(4)} == {"worker 1: not yet"}
    service.take_back("unready-1")
    assert {service.not_ready() for _ in range(4)} == {""}


def test_a_killed_worker_ends_its_connections_alone_and_is_started_again(service: Supervised) -> None:
    with ExitStack() as clients:
        found = connections(service, 4, clients)
        pid = who(found[1][0])["pid"]
        kill(pid)
        assert all(client.is_closed() for client in found[1])
        assert [who(client)["worker"] for client in found[0]] == [0, 0]
        assert service.get("/who").status == 200, "new connections go to the other one"
    service.wait_to_be_ready()
    assert service.pids()[1] != pid
    assert "worker 1 was killed by SIGKILL; it starts again in 0 ms" in service.log()


def test_a_connection_that_a_worker_has_not_taken_when_it_is_killed_goes_to_another(service: Supervised) -> None:
    pid = service.pids()[1]
    kill(pid, signal.SIGSTOP)
    with ExitStack() as clients:
        waiting = [clients.enter_context(service.connect()) for _ in range(4)]
        for client in waiting:
            client.send(b"GET /who HTTP/1.1\r\nhost: x\r\n\r\n")
        kill(pid)
        assert [client.reply()[0] for client in waiting] == [200] * 4


def test_a_worker_that_hangs_has_its_new_connections_taken_back_and_the_service_says_so(service: Supervised) -> None:
    pid = service.pids()[1]
    kill(pid, signal.SIGSTOP)
    service.wait_for(lambda: service.not_ready() == "worker 1 does not answer its supervisor", what="it to be missed")
    assert {service.get("/who").body["worker"] for _ in range(8)} == {0}
    kill(pid, signal.SIGCONT)
    service.wait_to_be_ready()


def test_reads_in_flight_are_finished_when_it_is_asked_to_end_and_nothing_is_left(service: Supervised) -> None:
    with ExitStack() as clients:
        found = connections(service, 2, clients)
        for (client,) in found.values():
            client.send(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        pids = service.pids()
        service.process.send_signal(signal.SIGTERM)
        service.wait_for(lambda: is_refused(service.port), what="the port to close")
        service.say("go")
        assert [client.reply()[0] for (client,) in found.values()] == [200, 200]
    assert service.process.wait(60) == -signal.SIGTERM
    wait_to_be_gone(pids.values())


def test_it_answers_on_for_its_delay_and_says_that_it_goes(tmp_path: Path) -> None:
    with supervised(tmp_path / "echo", delay_ms=60_000) as service:
        service.wait_to_be_ready()
        pids = service.pids()
        service.process.send_signal(signal.SIGTERM)
        service.wait_for(lambda: service.not_ready() == "leaving", what="it to say that it goes")
        assert service.get("/who").status == 200
        service.process.send_signal(signal.SIGTERM)  # the second one ends it at once
        assert service.process.wait(60) == -signal.SIGTERM
        wait_to_be_gone(pids.values())


def test_no_worker_outlives_a_supervisor_that_is_killed(service: Supervised) -> None:
    pids = service.pids()
    kill(pids[1], signal.SIGSTOP)  # one that could not notice by itself
    service.process.kill()
    wait_to_be_gone(pids.values())
    assert is_refused(service.port)


def test_a_worker_that_keeps_ending_waits_longer_and_longer_and_the_others_serve_and_say_so(
    service: Supervised,
) -> None:
    service.say("ends-1")
    kill(service.pids()[1])
    service.wait_for_log("worker 1 ended with exit code 7; it starts again in 1000 ms")
    assert service.get("/who").body["worker"] == 0
    reply = service.get("/readyz")
    assert reply.status == 503
    assert "worker 1 ended 3 times in a row, the last time it ended with exit code 7" in str(reply.body["degraded"])
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


def test_a_worker_that_cannot_go_on_is_replaced(service: Supervised) -> None:
    pid = service.pids()[1]
    service.say("dead-1")
    wait_to_be_gone([pid])
    service.take_back("dead-1")
    service.wait_to_be_ready()
    assert "worker 1 was killed: it said that it cannot go on" in service.log()


def test_a_worker_that_answers_nothing_for_too_long_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "echo"
    folder.mkdir()
    (folder / "impatient").touch()
    with supervised(folder) as service:
        service.wait_to_be_ready()
        kill(service.pids()[1], signal.SIGSTOP)
        service.wait_for_log("worker 1 was killed: it did not answer")
        service.wait_to_be_ready()
        assert service.metric('understudy_worker_restarts_total{reason="silent"}') == 1


def test_a_worker_that_refuses_to_start_ends_the_service_with_its_words(tmp_path: Path) -> None:
    folder = tmp_path / "echo"
    folder.mkdir()
    (folder / "refuses-1").touch()
    with supervised(folder) as service:
        assert service.process.stdout is not None
        assert service.process.stdout.readline() == "it will not (here). Take the file away\n"
        assert service.process.wait(60) == 3
        assert is_refused(service.port)


def test_every_line_of_the_log_says_which_worker_it_is_of(service: Supervised) -> None:
    for number in (0, 1):
        assert f" INFO file descriptors worker={number} action=file-limit" in service.log()
