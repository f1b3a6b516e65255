"""The service of `worker_echo` in processes of its own, and what tests do to them."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import orjson
from tests.support.cluster.served_node import Served
from tests.support.services.process_table import is_there
from tests.support.services.raw_http import RawClient
from tests.support.spark.queries import wait_until

MODULE = "tests.support.services.worker_echo"
LIMIT_S = 60.0


class Supervised(Served):
    """The running service, and a client of the port that its workers share."""

    def __init__(self, process: subprocess.Popen[str], port: int, workers: int, folder: Path, log: Path) -> None:
        super().__init__(port)
        self.process = process
        self.port = port
        self.own = [Served(port + 1 + number) for number in range(workers)]
        self.folder = folder
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def say(self, name: str) -> None:
        (self.folder / name).touch()

    def take_back(self, name: str) -> None:
        (self.folder / name).unlink()

    def connect(self) -> RawClient:
        return RawClient(self.port)

    def pids(self) -> dict[int, int]:
        """The worker processes, by their numbers."""
        return {number: int(str(own.get("/who").body["pid"])) for number, own in enumerate(self.own)}

    def wait_to_be_ready(self) -> None:
        """Return when all workers are ready, and the supervisor knows that each has started."""
        for number in range(len(self.own)):
            self.wait_for_log(f"worker {number} answers at port")
        self.wait_for(lambda: all(map(_is_ready, self.own)), what="readiness")

    def wait_for(self, condition: Callable[[], bool], *, what: str) -> None:
        wait_until(condition, what=what, limit_s=LIMIT_S)

    def wait_for_log(self, text: str) -> None:
        self.wait_for(lambda: text in self.log(), what=f"{text!r} in the log")


def _is_ready(worker: Served) -> bool:
    try:
        return worker.get("/readyz").status == 200
    except OSError:
        return False


def who(client: RawClient, path: str = "/who") -> dict[str, int]:
    """The worker that answers on a connection."""
    client.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    found: dict[str, int] = orjson.loads(client.reply()[2])
    return found


@contextmanager
def supervised(folder: Path, *, workers: int = 2, delay_ms: int = 0) -> Iterator[Supervised]:
    """The service until the end of the block, when nothing of it may be left."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    command = [sys.executable, "-m", MODULE, str(workers), str(folder), str(delay_ms)]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        has_begun = partial(_has_begun, process, port)
        wait_until(has_begun, what="the port to open", limit_s=LIMIT_S)
        yield Supervised(process, port, workers, folder, log)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _has_begun(process: subprocess.Popen[str], port: int) -> bool:
    return process.poll() is not None or not is_refused(port)


def wait_to_be_gone(pids: Iterable[int]) -> None:
    for pid in pids:
        wait_until(partial(_is_gone, pid), what=f"the end of process {pid}", limit_s=LIMIT_S)


def _is_gone(pid: int) -> bool:
    return not is_there(pid)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def is_refused(port: int) -> bool:
    """Whether nothing listens at the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
