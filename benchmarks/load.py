"""A closed-loop HTTP load from one process: 64 connections, one request each, the next sent when the answer is there.

Light enough (raw protocol on uvloop) not to be what is measured: on one core it drives about twice what the constant
application answers on another.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a run: answers per second, latency percentiles, and the statuses that came back."""

    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    statuses: dict[int, int]


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Sequence[bytes], latencies: list[float], statuses: dict[int, int]) -> None:
        self._requests = requests
        self._latencies = latencies
        self._statuses = statuses
        self._buffer = b""
        self._random = random.Random(len(latencies))
        self._sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._send()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            self._buffer = buffer
            return
        at = buffer.find(b"content-length: ") + 16
        if len(buffer) < head + 4 + int(buffer[at : buffer.find(b"\r", at)]):
            self._buffer = buffer
            return
        self._buffer = b""
        self._latencies.append(time.perf_counter() - self._sent_s)
        status = int(buffer[9:12])
        self._statuses[status] = self._statuses.get(status, 0) + 1
        self._send()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._random.choice(self._requests))


def get(path: str) -> bytes:
    """Return the bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run_load(port: int, requests: Sequence[bytes], *, connections: int = 64, seconds: float = 5.0) -> Load:
    """Drive `requests`, in random order, at a server on this machine's loopback."""
    return uvloop.run(_run(port, requests, connections, seconds, []))


class _Timed(list[float]):
    """Latencies, and when each of them ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_s: list[float] = []

    def append(self, latency_s: float) -> None:
        super().append(latency_s)
        self.ended_s.append(time.perf_counter())

    def clear(self) -> None:
        super().clear()
        self.ended_s.clear()


def timed_load(
    port: int, requests: Sequence[bytes], *, connections: int = 64, seconds: float
) -> list[tuple[float, float]]:
    """Run the load as `run_load`; return when each request ended, by `time.perf_counter`, and how long it took, the
    warm-up included.
    """
    timed = _Timed()
    uvloop.run(_run(port, requests, connections, seconds, timed, warm_up_s=0.0))
    return list(zip(timed.ended_s, timed, strict=True))


def paced_load(
    port: int, requests: Sequence[bytes], *, per_second: float, seconds: float, connections: int = 64
) -> Load:
    """Send requests at a fixed rate, whatever the answers do; a latency counts from when its request was due."""
    return uvloop.run(_paced(port, requests, per_second, seconds, connections))


class _Paced(asyncio.Protocol):
    """A connection with one request at a time. `done` is called with when the request was due, and the status."""

    def __init__(self, free: list[_Paced], done: Callable[[float, int], None]) -> None:
        self._free = free
        self._done = done
        self._buffer = b""
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._free.append(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        at = self._buffer.find(b"content-length: ") + 16
        if head < 0 or len(self._buffer) < head + 4 + int(self._buffer[at : self._buffer.find(b"\r", at)]):
            return
        status, self._buffer = int(self._buffer[9:12]), b""
        self._done(self._due_s, status)
        self._free.append(self)

    def send(self, request: bytes, due_s: float) -> None:
        self._due_s = due_s
        self.transport.write(request)


async def _paced(port: int, requests: Sequence[bytes], per_second: float, seconds: float, connections: int) -> Load:
    free: list[_Paced] = []
    latencies: list[float] = []
    statuses: dict[int, int] = {}

    def done(due_s: float, status: int) -> None:
        latencies.append(time.perf_counter() - due_s)
        statuses[status] = statuses.get(status, 0) + 1

    loop = asyncio.get_running_loop()
    opened = [await loop.create_connection(lambda: _Paced(free, done), "127.0.0.1", port) for _ in range(connections)]
    began_s, waiting, due = time.perf_counter(), deque[float](), 0
    while (now_s := time.perf_counter() - began_s) < seconds:
        while due / per_second <= now_s:
            waiting.append(began_s + due / per_second)
            due += 1
        while waiting and free:
            free.pop().send(random.choice(requests), waiting.popleft())
        await asyncio.sleep(min(0.0005, 0.5 / per_second))
    while waiting or len(free) < connections:
        while waiting and free:
            free.pop().send(random.choice(requests), waiting.popleft())
        await asyncio.sleep(0.001)
    for transport, _ in opened:
        transport.abort()
    taken = sorted(latencies)
    return Load(
        per_second=len(taken) / seconds,
        p50_ms=taken[len(taken) // 2] * 1000,
        p99_ms=taken[int(len(taken) * 0.99)] * 1000,
        max_ms=taken[-1] * 1000,
        statuses=statuses,
    )


async def _run(
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    latencies: list[float],
    *,
    warm_up_s: float = WARM_UP_S,
) -> Load:
    loop = asyncio.get_running_loop()
    statuses: dict[int, int] = {}
    transports = []
    for _ in range(connections):
        transport, _protocol = await loop.create_connection(
            lambda: _Connection(requests, latencies, statuses), "127.0.0.1", port
        )
        transports.append(transport)
    await asyncio.sleep(warm_up_s)
    latencies.clear()
    statuses.clear()
    started_s = time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed_s = time.perf_counter() - started_s
    taken = sorted(latencies) or [math.inf]  # no answer at all
    counted = dict(statuses)
    for transport in transports:
        transport.abort()
    return Load(
        per_second=len(latencies) / elapsed_s,
        p50_ms=taken[len(taken) // 2] * 1000,
        p99_ms=taken[int(len(taken) * 0.99)] * 1000,
        max_ms=taken[-1] * 1000,
        statuses=counted,
    )
