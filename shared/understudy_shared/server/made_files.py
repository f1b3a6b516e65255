"""The files that readers take ranges of: each is made once for all readers, and held in bounded memory.

A file lives while it is held here or a reader takes it. Files that are being made count as large as a file may be; so a
crowd of slow readers, each with a question of its own, is refused before memory is full.
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
"""Limit on all files of an application that are held here. The one that was used least recently goes first."""

MAX_HELD_FILES: Final = 64
"""Limit on the number of files that are held: each has a descriptor, however small it is."""

MAX_HELD_S: Final = 300.0
"""Time after its last use for which a file is held."""

MAX_LIVING_BYTES: Final = 512 * 1024 * 1024
"""Limit on the files of an application that are held, made, or taken by readers."""


class MadeFile:
    """A file without a name. Its memory is freed with its last user."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(name)
        self.size_bytes = 0
        weakref.finalize(self, os.close, self.descriptor)


@dataclass(slots=True)
class _Making:
    """A file that is being made, and the number of readers that wait for it."""

    task: asyncio.Future[MadeFile]
    waiting: int = 0


class MadeFiles:
    """The files of an application, by what they hold."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[MadeFile, float]] = {}
        """Each file with the time of its last use, in the order of use."""
        self._living: weakref.WeakSet[MadeFile] = weakref.WeakSet()
        self._making: dict[Hashable, _Making] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def get(self, key: Hashable, make: Callable[[], Awaitable[MadeFile]]) -> MadeFile:
        """Return a file that is held, or make it: once for all that ask meanwhile. Raises the problem of the maker."""
        found = self._held.pop(key, None)
        made = await self._made(key, make) if found is None else found[0]
        self._held.pop(key, None)
        self._held[key] = (made, monotonic())
        self._living.add(made)
        self._release()
        if self._sweep is None:
            self._sweep_later()
        return made

    async def _made(self, key: Hashable, make: Callable[[], Awaitable[MadeFile]]) -> MadeFile:
        making = self._making.get(key)
        if making is None:
            living_bytes = sum(each.size_bytes for each in self._living) + len(self._making) * MAX_FILE_BYTES
            if living_bytes + MAX_FILE_BYTES > MAX_LIVING_BYTES:
                detail = f"readers take {len(self._living)} files, and {len(self._making)} are being made"
                raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix="Retry after a second"))
            making = self._making[key] = _Making(asyncio.ensure_future(make()))
        making.waiting += 1
        try:
            return await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if (making.task.done() or not making.waiting) and self._making.get(key) is making:
                del self._making[key]
            if not making.waiting:
                making.task.cancel()  # without effect on one that is done

    def _release(self) -> None:
        """Release what was not used for long, and what is used least while too much is held."""
        oldest_s = monotonic() - MAX_HELD_S
        held_bytes = sum(made.size_bytes for made, _ in self._held.values())
        for key, (made, used_s) in list(self._held.items()):
            if used_s >= oldest_s and held_bytes <= MAX_HELD_BYTES and len(self._held) <= MAX_HELD_FILES:
                break
            del self._held[key]
            held_bytes -= made.size_bytes

    def _sweep_later(self) -> None:
        """Release files of the time to come, by one timer for all, while any is held."""

        def sweep() -> None:
            self._release()
            self._sweep = None
            if self._held:
                self._sweep_later()

        self._sweep = asyncio.get_running_loop().call_later(MAX_HELD_S + 1, sweep)
