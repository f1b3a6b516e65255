"""Whether a worker process is alive: the question at its own port, and how long it has been silent."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from enum import Enum, auto

from understudy_shared.base.words import HostInfo

LOOK_EVERY_S = 1.0
LOOK_TIMEOUT_S = 5.0

PAUSED_AFTER_S = 2 * (LOOK_EVERY_S + LOOK_TIMEOUT_S)
"""Time between two looks after which it was the supervisor that stood still, as in a frozen container."""


class Liveness(Enum):
    """The answer of a worker at /livez."""

    ALIVE = auto()
    DEAD = auto()
    """The worker says itself that it cannot go on."""
    SILENT = auto()
    """The worker says neither: it starts, hangs, or something else has its port."""


class SilenceTimer:
    """The time for which a worker has been silent while it was asked (pure: time is passed in)."""

    def __init__(self, now_s: float) -> None:
        self._looked_s = self._since_s = now_s

    def after(self, liveness: Liveness, now_s: float) -> float:
        """Count a look; return for how many seconds the worker has been silent."""
        if liveness is not Liveness.SILENT or now_s - self._looked_s > PAUSED_AFTER_S:
            self._since_s = now_s
        self._looked_s = now_s
        return now_s - self._since_s


async def liveness_of(host: HostInfo, *, is_tls: bool) -> Liveness:
    """Ask a worker at its own port whether it is alive."""
    tls = None
    if is_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # it is a process of ours, on this machine
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.host, host.port, ssl=tls)
            with contextlib.closing(writer):
                writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return _meaning(await reader.readline())
    except (OSError, ValueError, RuntimeError):  # another program has the port, or no thread resolves its host
        return Liveness.SILENT


def _meaning(status: bytes) -> Liveness:
    """Return the meaning of a status line. A 4xx is about the question, as when it came in too slowly."""
    if status.startswith(b"HTTP/1.1 200 "):
        return Liveness.ALIVE
    return Liveness.DEAD if status.startswith(b"HTTP/1.1 5") else Liveness.SILENT
