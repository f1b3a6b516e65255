"""Hands connections over to a worker process, and takes them there: descriptors over a socket pair, a byte for each.

The supervisor keeps a connection open until the worker says that it has taken it: one that still waits when the worker
ends, or hangs, is handed to another worker, unread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

_ONE = b"c"
_ACKS = 4096
"""Number of confirmations that are read at once: more than may wait."""

_TAKEN_AT_ONCE = 32
"""Number of connections taken in one turn of the loop; requests come between."""


class HandedOver:
    """The supervisor's side for one worker process.

    It has both ends of the pair, so it can take back what the worker has not taken: the kernel gives each connection to
    one of them.
    """

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        ours.setblocking(False)
        theirs.setblocking(False)
        self._ours, self._theirs = ours, theirs
        self._waiting: deque[tuple[socket.socket, float]] = deque()
        """Connections that the worker has not confirmed, in order, and since when each waits."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waits_s(self, now_s: float) -> float:
        """Return how long the first one has waited."""
        return now_s - self._waiting[0][1] if self._waiting else 0.0

    def give(self, connection: socket.socket, now_s: float) -> bool:
        """Hand a connection over. False: it cannot be handed over now."""
        try:
            socket.send_fds(self._ours, [_ONE], [connection.fileno()])
        except OSError:  # its buffer is full, or too many descriptors are on their way
            return False
        self._waiting.append((connection, now_s))
        return True

    def taken(self) -> int:
        """Close what the worker has taken meanwhile; return how many."""
        try:
            acks = self._ours.recv(_ACKS)
        except OSError:
            return 0
        for _ in acks:
            self._waiting.popleft()[0].close()
        return len(acks)

    def take_back(self) -> list[socket.socket]:
        """Take back the connections that the worker has not taken; it does not get them any more."""
        count = 0
        while (descriptors := _receive(self._theirs)) is not None:
            count += 1
            for descriptor in descriptors:
                os.close(descriptor)
        # They are the last ones: the worker takes the first, and may not have confirmed that yet.
        return [self._waiting.pop()[0] for _ in range(count)][::-1]

    def ended(self) -> list[socket.socket]:
        """End the hand-over to a worker that ended, and return the connections that it did not take."""
        self.taken()
        self._ours.close()
        self._theirs.close()
        left = [connection for connection, _ in self._waiting]
        self._waiting.clear()
        return left

    def fileno(self) -> int:
        return self._ours.fileno()


class Intake:
    """The worker's side: each connection becomes one of `new_protocol`'s."""

    def __init__(self, pair: socket.socket) -> None:
        pair.setblocking(False)
        self._pair = pair
        self._new_protocol: Callable[[], asyncio.Protocol] | None = None
        self._beginning: set[asyncio.Task[None]] = set()

    def start(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Take connections on the running loop."""
        self._new_protocol = new_protocol
        asyncio.get_running_loop().add_reader(self._pair.fileno(), self._take)

    async def stop(self) -> None:
        """Take the connections that are there, and no more."""
        new_protocol, self._new_protocol = self._new_protocol, None
        if new_protocol is None:
            return
        asyncio.get_running_loop().remove_reader(self._pair.fileno())
        while self._take_one(new_protocol):
            pass
        if self._beginning:
            await asyncio.wait(self._beginning)
        self._pair.close()

    def _take(self) -> None:
        assert self._new_protocol is not None
        for _ in range(_TAKEN_AT_ONCE):
            if not self._take_one(self._new_protocol):
                return

    def _take_one(self, new_protocol: Callable[[], asyncio.Protocol]) -> bool:
        descriptors = _receive(self._pair)
        if descriptors is None:
            return False
        loop = asyncio.get_running_loop()
        self._pair.send(_ONE)  # confirmed before anything is read of it: it is this process's from here on
        for descriptor in descriptors:
            task = loop.create_task(self._begin(socket.socket(fileno=descriptor), new_protocol))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(new_protocol, connection)
        except Exception as error:  # its peer left; its errors must not end the others
            log.debug("a connection ended as it began: %s", error, extra={"action": "not-taken"})
            connection.close()


def _receive(pair: socket.socket) -> list[int] | None:
    """Return the next connection's descriptors; empty when this process may open no more; None without a next one."""
    try:
        said, descriptors, _, _ = socket.recv_fds(pair, len(_ONE), 1)
    except OSError:
        return None
    return descriptors if said else None
