"""Asks every node about once a second how many bases it has replaced."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from http.client import HTTPException

from tests.system.proof.history import Bases
from tests.system.proof.processes import Service

ASK_EVERY_S = 1.0
ASK_LIMIT_S = 2.0
REPLACED = re.compile(r"^understudy_bases_replaced_total (\S+)$", re.MULTILINE)


class BaseWatch:
    """A thread that passes to `record` what each node says while it runs."""

    def __init__(self, nodes: Iterable[Service], record: Callable[[Bases], None]) -> None:
        self._nodes = tuple(nodes)
        self._record = record
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bases")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(ASK_EVERY_S):
            for node in self._nodes:
                try:
                    pid, said = node.pid, _metrics(node.port)
                except (AssertionError, OSError, HTTPException):  # not started yet, frozen, or just gone
                    continue
                if pid == node.pid and (found := REPLACED.search(said)):
                    self._record(Bases(time.monotonic() * 1000, node.name, pid, int(float(found[1]))))


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ASK_LIMIT_S) as reply:
        said: str = reply.read().decode()
        return said
