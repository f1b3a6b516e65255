"""Accepts a service's connections and hands each to the worker that `balance` chooses."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence

from understudy_shared.processes.balance import STALLED_MS, WorkerLoad, choose_worker
from understudy_shared.processes.worker_process import WorkerProcess

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 64
PAUSE_S = 0.5
"""Pause after a failed accept, for lack of descriptors or memory."""


class Acceptor:
    """The listener that accepts while a worker has room; else connections wait in the kernel's queue."""

    def __init__(self, listener: socket.socket, workers: Sequence[WorkerProcess]) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._workers = {worker.number: worker for worker in workers}
        self._returned: deque[socket.socket] = deque()
        self._given = 0
        self._next_look: asyncio.TimerHandle | None = None
        self._is_open = False
        self._is_reading = False

    def open(self, backlog: int) -> None:
        """Listen, and hand connections over."""
        if not self._is_open:
            self._is_open = True
            self._listener.listen(backlog)
            self.go_on()

    def close(self) -> None:
        """Accept no more."""
        self._read(on=False)
        self._is_open = False
        self._listener.close()
        if self._next_look is not None:
            self._next_look.cancel()
        while self._returned:
            self._returned.popleft().close()

    def give_back(self, connection: socket.socket) -> None:
        """Queue a connection that a worker did not take: another worker gets it."""
        self._returned.append(connection)
        self.go_on()

    def go_on(self) -> None:
        """Hand on returned connections, and accept when a worker has room."""
        if self._is_reading and not self._returned:
            return
        while self._returned and self._hand_over(self._returned[0]):
            self._returned.popleft()
        self._read(on=self._is_open and not self._returned and self._choose() is not None)

    def _read(self, *, on: bool) -> None:
        if on == self._is_reading:
            return
        self._is_reading = on
        loop = asyncio.get_running_loop()
        if on:
            loop.add_reader(self._listener.fileno(), self._accept)
        else:
            loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept: %s", error, extra={"action": "accept-failed"})
                self._read(on=False)
                asyncio.get_running_loop().call_later(PAUSE_S, self.go_on)
                return
            connection.setblocking(False)
            if not self._hand_over(connection):
                self.give_back(connection)
                return

    def _hand_over(self, connection: socket.socket) -> bool:
        number = self._choose()
        if number is None:
            return False
        self._given += 1
        worker = self._workers[number]
        worker.last_given = self._given
        loop = asyncio.get_running_loop()
        if self._next_look is None:
            self._next_look = loop.call_later(STALLED_MS / 1000, self._look)
        return worker.give(connection, loop.time())

    def _look(self) -> None:
        """Take connections back from workers that hang, while others do not."""
        self._next_look = None
        standings = self._standings()
        if not all(standing.hangs for standing in standings):
            for standing in filter(lambda each: each.hangs, standings):
                for connection in self._workers[standing.number].take_back():
                    self.give_back(connection)
        if self._next_look is None and any(standing.waiting for standing in self._standings()):
            self._next_look = asyncio.get_running_loop().call_later(STALLED_MS / 1000, self._look)

    def _choose(self) -> int | None:
        return choose_worker(self._standings())

    def _standings(self) -> list[WorkerLoad]:
        now_s = asyncio.get_running_loop().time()
        found = (worker.standing(now_s) for worker in self._workers.values())
        return [standing for standing in found if standing is not None]
