"""An open-loop load of GETs from this process: requests leave when they are due, even if earlier ones still wait.

So do many independent readers; a closed loop cannot show it: it gives a service that is too slow its rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

TICK_S = 0.002
MAX_CONNECTIONS = 2000
"""More than any service here lets wait; a request that finds none free counts as not sent."""


@dataclass(slots=True)
class LoadResult:
    """What came back. `latencies_ms` by status; `retry_after` of those that were refused."""

    latencies_ms: dict[int, list[float]] = field(default_factory=dict)
    retry_after: Counter[str] = field(default_factory=Counter)
    unsent: int = 0
    broken: int = 0
    seconds: float = 0.0

    def per_second(self, status: int) -> float:
        """Answers of a status per second."""
        return len(self.latencies_ms.get(status, ())) / self.seconds

    def percentile_ms(self, status: int, share: float) -> float:
        """A percentile of the latencies of a status; 0 when there was none."""
        ordered = sorted(self.latencies_ms.get(status, ()))
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def line(self) -> str:
        """One line for people."""
        statuses = ", ".join(
            f"{status}: {self.per_second(status):.0f}/s p50 {self.percentile_ms(status, 0.5):.1f} "
            f"p99 {self.percentile_ms(status, 0.99):.1f} max {self.percentile_ms(status, 1):.1f} ms"
            for status in sorted(self.latencies_ms)
        )
        return f"{statuses}; {self.broken} broken, {self.unsent} not sent"


class _Connection(asyncio.Protocol):
    def __init__(self, result: LoadResult, free: list[_Connection]) -> None:
        self._result = result
        self._free = free
        self._buffer = b""
        self._sent_s = 0.0
        self._idle = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._idle.set()

    def send(self, request: bytes, due_s: float) -> None:
        assert self.transport is not None
        self._idle.clear()
        self._sent_s = due_s
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[16:]) for line in lines if line.startswith(b"content-length: ")), 0)
        if not end or len(body) < length:
            return
        self._buffer = b""
        self._idle.set()
        status = int(head[9:12])
        self._result.latencies_ms.setdefault(status, []).append((time.perf_counter() - self._sent_s) * 1000)
        self._result.retry_after.update(line[13:].decode() for line in lines if line.startswith(b"retry-after: "))
        self._free.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self._idle.is_set():
            self._idle.set()
            self._result.broken += 1

    async def idle(self) -> None:
        """Return when nothing is on its way on it."""
        await self._idle.wait()


async def open_load(port: int, requests: Sequence[bytes], *, per_second: float, seconds: float) -> LoadResult:
    """Send `requests` in turn at that rate for so long; return when all were answered or their connection broke."""
    result, free, every = LoadResult(), list[_Connection](), list[_Connection]()
    loop = asyncio.get_running_loop()
    began_s = time.perf_counter()
    sent = 0
    while (now_s := time.perf_counter()) - began_s < seconds:
        due = int((now_s - began_s) * per_second)
        for number in range(sent, due):
            while free and free[-1].transport is None:
                free.pop()
            if not free and len(every) < MAX_CONNECTIONS:
                _, made = await loop.create_connection(lambda: _Connection(result, free), "127.0.0.1", port)
                every.append(made)
                free.append(made)
            if free:
                free.pop().send(requests[number % len(requests)], began_s + number / per_second)
            else:
                result.unsent += 1
        sent = max(sent, due)
        await asyncio.sleep(TICK_S)
    result.seconds = time.perf_counter() - began_s
    await asyncio.gather(*(each.idle() for each in every))
    for each in every:
        if each.transport is not None:
            each.transport.close()
    return result
