"""What each of several processes gets of the limits that hold for the service (pure but for `worker_settings`)."""

from __future__ import annotations

from typing import Any

from understudy_shared.server.memory_use import MemoryMeter, default_limit_bytes
from understudy_shared.server.settings import HttpServiceSettings

DIVIDED = ("max_connections", "max_in_flight", "metrics_max_partitions", "statestore_cache_max_bytes")
"""Settings that limit what the whole service takes."""


def share_of(limit: int, processes: int) -> int:
    """A process's part of a number that is divided, rounded up: nobody gets 0 of something, and 0 stays 0."""
    return -(-limit // processes)


def memory_share_bytes(limit_bytes: int, processes: int, *, used_bytes: int) -> int:
    """A process's part of the memory that the supervisor, which uses `used_bytes`, leaves; 0 is no limit."""
    return 0 if limit_bytes <= 0 else max(1, (limit_bytes - used_bytes) // processes)


def worker_settings(settings: HttpServiceSettings, processes: int, **own: object) -> dict[str, Any]:
    """The settings of one worker process, as JSON: its part of each limit, and what is its `own`."""
    found = settings.model_dump(mode="json", exclude={"cache_max_bytes_buffering"})  # a deprecated name of another
    for name in DIVIDED:
        if name in found:
            found[name] = share_of(found[name], processes)
    limit_bytes = default_limit_bytes() if settings.memory_limit_bytes is None else settings.memory_limit_bytes
    used_bytes = _used_bytes() if limit_bytes else 0
    found["memory_limit_bytes"] = memory_share_bytes(limit_bytes, processes, used_bytes=used_bytes)
    return {**found, **own}


def _used_bytes() -> int:
    meter = MemoryMeter()
    try:
        return meter.used_bytes()
    finally:
        meter.close()
