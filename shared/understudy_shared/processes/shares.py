"""The share of each of several processes in the limits of the service (pure but for `worker_settings`)."""

from __future__ import annotations

from typing import Any

from understudy_shared.server.memory_use import MemoryMeter, default_limit_bytes
from understudy_shared.server.settings import HttpServiceSettings

DIVIDED = ("max_connections", "max_in_flight", "metrics_max_partitions", "statestore_cache_max_bytes")
"""Settings that limit the whole service."""


def share_of(limit: int, processes: int) -> int:
    """Return a process's part of a limit, rounded up: it is 0 only if the limit is 0."""
    return -(-limit // processes)


def memory_share_bytes(limit_bytes: int, processes: int, *, used_bytes: int) -> int:
    """Return a process's part of the memory that is left beside the supervisor's `used_bytes`; 0 means no limit."""
    return 0 if limit_bytes <= 0 else max(1, (limit_bytes - used_bytes) // processes)


def worker_settings(settings: HttpServiceSettings, processes: int, **own: object) -> dict[str, Any]:
    """Return the settings of one worker process, as JSON: its part of each limit, and the settings in `own`."""
    found = settings.model_dump(mode="json", exclude={"cache_max_bytes_buffering"})  # deprecated alias
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
