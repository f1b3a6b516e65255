"""Drives lookups at a server over keep-alive connections, and counts the replies.

Closed loop: each connection sends its next lookup when the answer is there. With a rate, lookups fall due at fixed
times whether or not the server keeps up, and their latency counts from then: a slow server cannot hide its queue.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from typing import cast

from understudy.load.counts import LoadCounts

TICK_S = 0.005
REOPEN_AFTER_S = 0.1
MAX_DUE = 100_000
"""Number of lookups that may wait for a connection. Beyond it, the oldest are not sent, and counted."""

NO_ANSWER = "no answer in time"
LOST = "connection lost"
NO_HTTP = "no HTTP reply, or one too large"
NOT_SENT = "not sent: the server is too far behind the rate"

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Limit on a reply: twice the largest answer of a node."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Load:
    """One run against one server. `counts` may be read at any time."""

    def __init__(
        self,
        host: str,
        port: int,
        requests: Sequence[bytes],
        *,
        connections: int,
        rate: float | None,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare a run. `requests` are whole requests, sent in turns. `rate` is in lookups a second, None for a closed
        loop. `tls`: the context for a server that speaks TLS.
        """
        self.counts = LoadCounts()
        self._place = host, port
        self._requests = cycle(requests)
        self._connections = connections
        self._rate = rate
        self._timeout_s = timeout_s
        self._tls = tls
        self._open: set[_Connection] = set()
        self._idle: deque[_Connection] = deque()
        self._due_s: deque[float] = deque()
        self._reopening: set[asyncio.Task[None]] = set()
        self._ends = False

    async def run(self, seconds: float) -> float:
        """Drive for so long; return the seconds that it took.

        Raises OSError or TimeoutError when it cannot connect in the beginning.
        """
        loop = asyncio.get_running_loop()
        for _ in range(self._connections):
            await self._connect()
        began_s, fallen_due = loop.time(), 0
        while (now_s := loop.time()) < began_s + seconds:
            while self._rate is not None and fallen_due <= (now_s - began_s) * self._rate:
                self._due_s.append(began_s + fallen_due / self._rate)
                fallen_due += 1
            self._send_due()
            for connection in list(self._open):
                connection.expire(now_s - self._timeout_s)
            await asyncio.sleep(TICK_S)
        took_s, self._ends = loop.time() - began_s, True
        for task in self._reopening:
            task.cancel()
        for connection in list(self._open):
            connection.close()
        return took_s

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(lambda: _Connection(self), *self._place, ssl=self._tls)
        await asyncio.wait_for(opening, self._timeout_s)

    async def _reopen(self) -> None:
        while not self._ends:
            await asyncio.sleep(REOPEN_AFTER_S)
            with suppress(OSError, TimeoutError):
                await self._connect()
                break

    def _send_due(self) -> None:
        while self._due_s and self._idle:
            connection = self._idle.popleft()
            if connection.is_open:
                connection.send(next(self._requests), self._due_s.popleft())
        while len(self._due_s) > MAX_DUE:
            self._due_s.popleft()
            self.counts.failed(NOT_SENT)

    # ---- a connection's side

    def ready(self, connection: _Connection, now_s: float) -> None:
        """Use a connection that was opened, or has its answer."""
        self._open.add(connection)
        if self._ends:
            return
        if self._rate is None:
            connection.send(next(self._requests), now_s)
        else:
            self._idle.append(connection)
            self._send_due()

    def lost(self, connection: _Connection, why: str | None) -> None:
        """Count a closed connection; `why` is what became of its lookup, None when it had no lookup."""
        self._open.discard(connection)
        if self._ends:
            return
        if why is not None:
            self.counts.failed(why)
        task = asyncio.get_running_loop().create_task(self._reopen(), name="connect again")
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)


class _Connection(asyncio.Protocol):
    """A connection with one lookup at a time."""

    def __init__(self, load: Load) -> None:
        self.is_open = False
        self._load = load
        self._read = b""
        self._due_s: float | None = None
        """The time when the lookup in flight fell due; None without one."""
        self._sent_s = 0.0
        self._why: str | None = None
        self._now = asyncio.get_running_loop().time

    def send(self, request: bytes, due_s: float) -> None:
        self._due_s, self._sent_s = due_s, self._now()
        self._transport.write(request)

    def expire(self, sent_before_s: float) -> None:
        """Give the lookup in flight up, if it was sent before then."""
        if self._due_s is not None and self._sent_s < sent_before_s:
            self._why = NO_ANSWER
            self.close()

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True
        self._load.ready(self, self._now())

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._load.lost(self, None if self._due_s is None else self._why or LOST)

    def data_received(self, data: bytes) -> None:
        read = self._read = self._read + data
        if not read.startswith(b"HTTP/1."[: len(read)]) or len(read) > MAX_REPLY_BYTES:
            self._why = NO_HTTP
            self.close()
            return
        head_end = read.find(b"\r\n\r\n")
        if head_end < 0 or self._due_s is None:
            return
        length = _LENGTH.search(read, 0, head_end)
        end = head_end + 4 + (int(length.group(1)) if length else 0)
        if len(read) < end:
            return
        if not read[9:12].isdigit():
            self._why = NO_HTTP
            self.close()
            return
        status, body, due_s, now_s = int(read[9:12]), read[head_end + 4 : end], self._due_s, self._now()
        self._read, self._due_s = b"", None
        self._load.counts.answered(status, body, (now_s - due_s) * 1000)
        if b"\r\nconnection: close" in read[:head_end].lower():
            self.close()
        else:
            self._load.ready(self, now_s)
