"""The files that a process makes for its readers in memory, of all its applications: the cache, and the bounds.

A file lives while the cache holds it or a client downloads it. A file that is being made counts with the largest size
of a file, so a crowd of slow clients, each with a question of its own, is refused before memory is full. A process with
a small memory limit keeps less. No meter of resident memory sees the bytes, so the connection guard asks for them.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from understudy_shared.http.problems import Problem, ProblemError, ProblemType

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Limit on a file. Larger answers are streams, which need no memory."""

MAX_HELD_BYTES: Final = 128 * 1024 * 1024
"""Limit on the bytes of all cached files of a process. The least recently used one is evicted first."""

MAX_HELD_FILES: Final = 64
"""Limit on the number of cached files: each has a file descriptor, however small it is."""

MAX_HELD_S: Final = 300.0
"""Time for which a file is cached after its last use."""

MAX_LIVING_BYTES: Final = 512 * 1024 * 1024
"""Limit on the bytes of all files of a process: cached, being made, or being downloaded."""

HELD_SHARE: Final = 8
LIVING_SHARE: Final = 4
"""The shares of a process' memory limit, an eighth and a quarter, that bound cached files and all files, too."""


class MadeFile:
    """A file without a name. Its memory is freed with its last user."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("made-file")
        self.size_bytes = 0
        """Its size once it is made."""
        weakref.finalize(self, os.close, self.descriptor)


Make = Callable[[MadeFile], Awaitable[None]]


@dataclass(slots=True)
class _Making:
    """A file that is being made, and the number of readers that wait for it."""

    task: asyncio.Future[MadeFile]
    waiting: int = 0


class MadeFiles:
    """The files of a process, by their content. Their keys tell applications apart."""

    def __init__(self, memory_limit_bytes: int = 0) -> None:
        """Set the memory limit of the process; 0 means no limit."""
        self.max_held_bytes, self.max_living_bytes = MAX_HELD_BYTES, MAX_LIVING_BYTES
        if memory_limit_bytes:
            self.max_held_bytes = min(MAX_HELD_BYTES, memory_limit_bytes // HELD_SHARE)
            # One file is made while another is downloaded, however little memory there is.
            self.max_living_bytes = min(MAX_LIVING_BYTES, max(memory_limit_bytes // LIVING_SHARE, 2 * MAX_FILE_BYTES))
        self._held: dict[Hashable, tuple[MadeFile, float]] = {}
        """Each file with the time of its last use, in the order of use."""
        self._living: weakref.WeakSet[MadeFile] = weakref.WeakSet()
        self._making: dict[Hashable, _Making] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def used_bytes(self) -> int:
        """Return the bytes of all files, as far as they are written."""
        return sum(os.fstat(each.descriptor).st_size for each in self._living)

    def give_back(self) -> None:
        """Evict all cached files."""
        self._held.clear()

    async def get(self, key: Hashable, make: Make) -> MadeFile:
        """Return a cached file, or make it, once for all concurrent requests. Raises the problem of `make`, and an
        overloaded problem if files take too much memory.
        """
        found = self._held.pop(key, None)
        made = await self._made(key, make) if found is None else found[0]
        self._held.pop(key, None)
        self._held[key] = (made, monotonic())
        self._release()
        if self._sweep is None:
            self._sweep_later()
        return made

    async def _made(self, key: Hashable, make: Make) -> MadeFile:
        making = self._making.get(key)
        if making is None:
            living_bytes = sum(each.size_bytes for each in self._living) + len(self._making) * MAX_FILE_BYTES
            if living_bytes + MAX_FILE_BYTES > self.max_living_bytes:
                detail = f"readers take {len(self._living)} files of stores; {len(self._making)} of them are being made"
                raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix="Retry after a second"))
            making = self._making[key] = _Making(asyncio.ensure_future(self._written(make)))
        making.waiting += 1
        try:
            return await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if (making.task.done() or not making.waiting) and self._making.get(key) is making:
                del self._making[key]
            if not making.waiting:
                making.task.cancel()  # without effect on one that is done

    async def _written(self, make: Make) -> MadeFile:
        made = MadeFile()
        self._living.add(made)
        await make(made)
        return made

    def _release(self) -> None:
        """Evict files that were not used for long, and the least recently used ones while the cache is too large."""
        oldest_s = monotonic() - MAX_HELD_S
        held_bytes = sum(made.size_bytes for made, _ in self._held.values())
        for key, (made, used_s) in list(self._held.items()):
            if used_s >= oldest_s and held_bytes <= self.max_held_bytes and len(self._held) <= MAX_HELD_FILES:
                break
            del self._held[key]
            held_bytes -= made.size_bytes

    def _sweep_later(self) -> None:
        """Schedule the next eviction, by one timer for all files; it repeats while any file is cached."""

        def sweep() -> None:
            self._release()
            self._sweep = None
            if self._held:
                self._sweep_later()

        self._sweep = asyncio.get_running_loop().call_later(MAX_HELD_S + 1, sweep)
