"""How much memory this process uses, and how much it may: read from the kernel's files."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SHARE_OF_RAM_PERCENT = 80
"""Without a limit of its control group a process may use so much of the machine."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NO_LIMIT_BYTES = 1 << 60
"""Control groups of version 1 say "no limit" by a number near 2^63."""


class MemoryMeter:
    """Reads what this process uses; its file stays open, so that it can be read when no descriptor is left."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def used_bytes(self) -> int:
        """Resident memory without pages of files: those the kernel takes back by itself."""
        _, resident, shared, *_ = os.pread(self._statm, 128, 0).split()
        return (int(resident) - int(shared)) * _PAGE_BYTES

    def close(self) -> None:
        os.close(self._statm)


def default_limit_bytes(root: Path = Path("/")) -> int:
    """The limit of this process' control group, or a share of the machine's memory; 0 where nobody says."""
    limits = [limit for path in _limit_files(root) if (limit := _number(path)) is not None]
    total_bytes = _total_bytes(root) * SHARE_OF_RAM_PERCENT // 100
    return min([*limits, *([total_bytes] if total_bytes else [])], default=0)


def _limit_files(root: Path) -> list[Path]:
    """Of version 2 and of version 1; inside a container the group is the root of what it sees."""
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
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return limit if limit < _NO_LIMIT_BYTES else None


def _total_bytes(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), 0)


def give_back() -> None:
    """Have the allocator return what it keeps for later; only glibc's can be asked."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
