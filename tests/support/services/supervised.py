"""The service of `worker_echo` in processes of its own, and what tests do to them."""

from __future__ import annotations

import errno
import os
import re
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
ASKED = "echo_asked_total"


class Supervised(Served):
    """The running service, and a client of its port."""

    def __init__(self, process: subprocess.Popen[str], port: int, folder: Path, log: Path) -> None:
        super().__init__(port)
        self.process = process
        self.port = port
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
        """The worker processes that answer, by their numbers."""
        found: dict[int, int] = {}

        def has_all() -> bool:
            reply = self.get("/who").body
            found[int(str(reply["worker"]))] = int(str(reply["pid"]))
            return len(found) > 1

        wait_until(has_all, what="an answer of both workers", limit_s=LIMIT_S)
        return found

    def metric(self, name: str) -> float:
        """A metric of the service without labels, or with those in `name`."""
        found = re.search(rf"(?m)^{re.escape(name)} (\S+)$", self.text("/metrics"))
        return float(found[1]) if found else float("nan")

    def wait_to_be_ready(self) -> None:
        self.wait_for(lambda: self.not_ready() == "", what="readiness")

    def wait_for(self, condition: Callable[[], bool], *, what: str) -> None:
        wait_until(condition, what=what, limit_s=LIMIT_S)

    def wait_for_log(self, text: str) -> None:
        self.wait_for(lambda: text in self.log(), what=f"{text!r} in the log")


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
        yield Supervised(process, port, folder, log)
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
