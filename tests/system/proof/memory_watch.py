"""Looks at the memory of every service a few times a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.services.raw_http import resident_bytes
from tests.system.proof.history import Memory
from tests.system.proof.processes import Service

LOOK_EVERY_S = 0.25


class MemoryWatch:
    """A thread that passes to `record` what memory each service uses while it runs."""

    def __init__(self, services: Iterable[Service], record: Callable[[Memory], None]) -> None:
        self._services = tuple(services)
        self._record = record
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            for service in self._services:
                try:
                    pid = service.pid
                    used = resident_bytes(pid) if Path(f"/proc/{pid}").exists() else 0
                except (AssertionError, OSError, ValueError):  # not started yet, or just gone
                    continue
                if used:
                    self._record(Memory(time.monotonic() * 1000, service.name, pid, used))
