"""Keeps a service's connections within their limits: checks all of them four times a second, and counts refusals.

`connection_limits` decides; this module acts, and reads the memory in use from the kernel's files. There is one guard
per service; a connection asks it when it opens and when a request begins. Nothing here awaits, and an error in one
check does not end the checks.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_shared.base.texts import size_text
from understudy_shared.base.throttles import LogThrottle
from understudy_shared.server.connection_limits import (
    EVICTED_AT_ONCE,
    ConnectionLimits,
    ConnectionRefusal,
    ConnectionState,
    Pressure,
    goes_under_pressure,
    is_overdue,
    is_reserved,
    pressure,
    to_evict,
)
from understudy_shared.server.made_files import MadeFiles

SHARE_OF_RAM_PERCENT = 80
"""Share of the machine's memory for a process whose control group has no limit."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NO_LIMIT_BYTES = 1 << 60
"""Least number that means no limit: control groups of version 1 write a number near 2^63 for "no limit"."""


class MemoryMeter:
    """The meter of the memory of this process. Its file stays open, so it works when no file descriptor is left."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def used_bytes(self) -> int:
        """Return the resident memory without the pages of files, which the kernel can reclaim."""
        _, resident, shared, *_ = os.pread(self._statm, 128, 0).split()
        return (int(resident) - int(shared)) * _PAGE_BYTES

    def close(self) -> None:
        os.close(self._statm)


def default_limit_bytes(root: Path = Path("/")) -> int:
    """Return the limit of this process' control group, or a share of the machine's memory; 0 if neither is known."""
    limits = [limit for path in _limit_files(root) if (limit := _number(path)) is not None]
    total_bytes = _total_bytes(root) * SHARE_OF_RAM_PERCENT // 100
    return min([*limits, *([total_bytes] if total_bytes else [])], default=0)


def _limit_files(root: Path) -> list[Path]:
    """List the files with limits of control groups, versions 2 and 1. A container sees its own group as the root."""
    groups = root / "sys/fs/cgroup"
    found = [groups / "memory.max", groups / "memory/memory.limit_in_bytes"]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append(groups / path.lstrip("/") / "memory.max")
        elif "memory" in controllers.split(","):
            found.append(groups / "memory" / path.lstrip("/") / "memory.limit_in_bytes")
    return found


def _number(path: Path) -> int | None:
    try:
        limit = int(path.read_text())
    except (OSError, ValueError):  # the group does not exist, or its limit is "max"
        return None
    return limit if limit < _NO_LIMIT_BYTES else None


def _total_bytes(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), 0)


def give_back() -> None:
    """Make the allocator return its free memory to the kernel; only glibc's allocator can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


LOOK_EVERY_S = 0.25
LOOKED_AT_ONCE = 500
"""Number of connections that are checked in one turn of the event loop: under 1 ms."""

GIVE_BACK_EVERY_S = 5.0

MEMORY = "memory"
"""The cause by which a guard reports a service as degraded."""

log = logging.getLogger(__name__)


class GuardedConnection(Protocol):
    """The methods of a connection that the guard calls."""

    def state(self, now_s: float) -> ConnectionState: ...

    def go_on(self) -> None:
        """Start the next request of a pipeline if it may start, or take the next step of a TLS handshake."""

    def expire(self) -> None:
        """End the connection: it exceeded the time limit of its phase."""

    def drop(self, refusal: ConnectionRefusal) -> None:
        """Close the connection at once."""


class ConnectionGuard:
    """The guard over the connections of one service. `refused` counts refusals by reason, for the metrics. `files` are
    those that all applications of the service make for readers: memory that it measures, too.
    """

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.files = MadeFiles(self.limits.memory_limit_bytes)
        self.refused: Counter[ConnectionRefusal] = Counter()
        self.connections: set[GuardedConnection] = set()
        self.pressure = Pressure.NONE
        self.used_bytes = 0
        self._waiting: dict[GuardedConnection, None] = {}
        """Connections whose next request or step of a handshake may start, in order."""
        self._throttle = LogThrottle()
        self._meter: MemoryMeter | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._given_back_s = 0.0

    def __repr__(self) -> str:
        return f"ConnectionGuard({len(self.connections)} of {self.limits.max_connections}, {self.pressure.name})"

    def causes(self) -> dict[str, str]:
        """Return why the service is degraded, by cause; empty while memory suffices."""
        if self.pressure is Pressure.NONE:
            return {}
        limit, what = size_text(self.limits.memory_limit_bytes), "requests are refused"
        done = "idle connections are closed" if self.pressure is Pressure.SHED else what
        return {MEMORY: f"memory is short: {self.used_bytes >> 20} MiB of {limit} used, {done}"}

    # ---- the service's side

    def start(self) -> None:
        self._meter = MemoryMeter() if self.limits.memory_limit_bytes else None
        self._look_later()

    def stop(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    # ---- a connection's side

    def admit(self, connection: GuardedConnection, now_s: float) -> bool | None:
        """Admit a new connection.

        Return True to admit it without restriction, False to admit it for probes and internal paths only, None to
        refuse it.
        """
        self.connections.add(connection)
        limits = self.limits
        excess = len(self.connections) - limits.max_connections
        if excess <= 0 or self._evict(connection, excess, now_s):
            return True
        if excess <= limits.reserved_connections:
            return False
        self.connections.discard(connection)
        return None

    def refuses(self, path: str, *, restricted: bool) -> ConnectionRefusal | None:
        """Return why a request is refused now; None if it is answered."""
        if not (restricted or self.pressure is Pressure.REFUSE) or is_reserved(path):
            return None
        return ConnectionRefusal.CONNECTIONS if restricted else ConnectionRefusal.MEMORY

    def note(self, refusal: ConnectionRefusal, peer: tuple[str, int] | None, now_s: float) -> None:
        """Count a refusal, and log at most one per peer and minute."""
        self.refused[refusal] += 1
        host = peer[0] if peer else "unknown"
        left_out = self._throttle.admit(host, now_s * 1000)
        if left_out is not None:
            port = peer[1] if peer else 0
            log.warning(
                "a connection was refused: %s (peer %s, port %d); its further refusals are not logged for a minute",
                refusal,
                host,
                port,
                extra={"action": "connection-refused", "reason": str(refusal), "peer": host, **left_out},
            )

    def go_on_later(self, connection: GuardedConnection) -> None:
        """Have `go_on` called in its turn: one per turn of the loop, over all connections."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next_goes_on)
        self._waiting[connection] = None

    def _next_goes_on(self) -> None:
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next_goes_on)
        connection.go_on()

    # ---- checks

    def look(self, now_s: float) -> None:
        """End overdue connections, and close idle ones when memory is short."""
        self._measure(now_s)
        self._look_at(tuple(self.connections), now_s)

    def _look_at(self, connections: Sequence[GuardedConnection], now_s: float) -> None:
        for connection in connections:
            if connection not in self.connections:  # it has closed since the check began
                continue
            state = connection.state(now_s)
            if is_overdue(state, self.limits, now_s):
                connection.expire()
            elif self.pressure and goes_under_pressure(state, now_s):
                connection.drop(ConnectionRefusal.MEMORY)

    def _measure(self, now_s: float) -> None:
        if self._meter is None:
            return
        # The files are not resident memory of this process, but its control group pays for them.
        self.used_bytes, before = self._meter.used_bytes() + self.files.used_bytes(), self.pressure
        self.pressure = pressure(self.used_bytes, self.limits.memory_limit_bytes)
        if self.pressure and now_s - self._given_back_s > GIVE_BACK_EVERY_S:
            self._given_back_s = now_s
            self.files.give_back()
            give_back()
        if self.pressure > before:
            log.error("%s", self.causes()[MEMORY], extra={"action": "memory-short"})
        elif self.pressure < before and not self.pressure:
            log.info("memory suffices again", extra={"action": "memory-enough"})

    def _evict(self, newest: GuardedConnection, excess: int, now_s: float) -> bool:
        """Close the least needed connections for a new one. Return True if there is room for it now."""
        others = ((each, each.state(now_s)) for each in self.connections if each is not newest)
        count = max(excess, self.limits.max_connections // EVICTED_AT_ONCE)
        gone = to_evict(others, count, now_s)
        for connection in gone:
            connection.drop(ConnectionRefusal.CONNECTIONS)
            self.connections.discard(connection)
        return len(gone) >= excess

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._looked)

    def _looked(self) -> None:
        self._look_later()
        self._look_on(tuple(self.connections), 0)

    def _look_on(self, connections: Sequence[GuardedConnection], start: int) -> None:
        """Check some connections now, and the others in later turns of the loop."""
        loop, end = asyncio.get_running_loop(), start + LOOKED_AT_ONCE
        if end < len(connections):
            loop.call_soon(self._look_on, connections, end)
        try:
            if start == 0:
                self._measure(loop.time())
            self._look_at(connections[start:end], loop.time())
        except Exception:
            log.exception("the connections could not be checked", extra={"action": "guard-failed"})

    def metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("understudy_connections", "Connections that are open", len(self.connections))
        refused = CounterMetricFamily(
            "understudy_connections_refused", "Connections and requests refused, by reason", labels=("reason",)
        )
        for reason in ConnectionRefusal:
            refused.add_metric((reason,), self.refused[reason])
        yield refused
        yield GaugeMetricFamily(
            "understudy_memory_pressure",
            "0: enough memory, 1: idle connections are closed, 2: requests are refused",
            self.pressure,
        )
        yield GaugeMetricFamily(
            "understudy_memory_limit_bytes",
            "memory_limit_bytes as in force; 0 means no limit",
            self.limits.memory_limit_bytes,
        )


def file_limit() -> int:
    """Return the number of file descriptors that the system allows this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_file_limit() -> None:
    """Use all descriptors that the system allows: connections and open tables take one each."""
    limit = file_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    log.info("file descriptors", extra={"action": "file-limit", "limit": limit})


def address_of(transport: asyncio.BaseTransport, end: str) -> tuple[str, int] | None:
    """Return the host and port of one end of a connection, `peername` or `sockname`; None without one."""
    name = transport.get_extra_info(end)
    return (str(name[0]), int(name[1])) if isinstance(name, list | tuple) else None
