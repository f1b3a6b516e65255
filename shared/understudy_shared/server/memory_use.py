"""The memory that this process uses and may use, from the kernel's files."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

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
