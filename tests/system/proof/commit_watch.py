"""Watches the commit log as closely as its storage lets one: between which two moments each commit appeared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.system.proof.history import Commit, Watched
from tests.system.proof.storage import Storage


class CommitWatch:
    """A thread that passes every commit to `record`, from the first one on."""

    def __init__(self, storage: Storage, record: Callable[[Commit | Watched], None]) -> None:
        self.version = 0
        """The newest that was seen."""
        self._storage = storage
        self._record = record
        self._ended = threading.Event()
        self._missed_ms: float | None = None
        self._thread = threading.Thread(target=self._run, name="commits")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(self._storage.look_every_s)
            while self._look():
                pass
        assert self._missed_ms is not None
        self._record(Watched(self._missed_ms))

    def _look(self) -> bool:
        began_ms = time.monotonic() * 1000
        mtime_us = self._storage.committed_us(self.version + 1)
        if mtime_us is None:
            self._missed_ms = began_ms
            return False
        self.version += 1
        self._record(Commit(self.version, time.monotonic() * 1000, self._missed_ms, mtime_us))
        return True
