"""The changes of several partitions in the order of versions, while those that come next are fetched.

Of each partition at most one part is there. Its versions behind the one that is sent are small, so that memory is
bounded however many partitions there are; a large version comes in parts of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Final

from understudy_shared.questions.changes.question import ChangesPlace, VersionLines
from understudy_shared.reads.tokens import LineageChangedError

PARTITIONS_AHEAD: Final = 2
"""Number of partitions whose next part is fetched ahead."""

FetchChanges = Callable[[int, ChangesPlace, bool], Coroutine[None, None, tuple[VersionLines, ...]]]
"""A function that reads the changes of a partition behind a place, a short part if the flag is set. It raises the
problem of what cannot be read.
"""


class _Partition:
    """The changes of a partition that are there, or on their way."""

    def __init__(self, number: int, first: int, fetch: FetchChanges) -> None:
        self.coming: asyncio.Task[tuple[VersionLines, ...]] | None = None
        self._number = number
        self._place = ChangesPlace(first)
        self._is_short = True
        self._fetch = fetch
        self._there: deque[VersionLines] = deque()

    def begin(self) -> None:
        """Fetch what comes next, unless something is there or on its way."""
        if not self._there and self.coming is None:
            fetched = self._fetch(self._number, self._place, self._is_short)
            self.coming = asyncio.get_running_loop().create_task(fetched, name="fetch changes of a partition")
            self._is_short = False

    async def arrive(self) -> None:
        """Wait until something is there. Raises its problem."""
        self.begin()
        if self.coming is not None:
            self._there.extend(await self.coming)
            self.coming = None

    async def next(self) -> VersionLines:
        """Return the next piece of a version. Raises its problem."""
        await self.arrive()
        piece = self._there.popleft()
        is_whole = piece.is_whole
        self._place = ChangesPlace(piece.version + 1) if is_whole else ChangesPlace(piece.version, piece.looked_at)
        return piece


class MergedChanges:
    """The changes of `partitions` from version `first` to `last`."""

    def __init__(self, partitions: Sequence[int], first: int, last: int, fetch: FetchChanges) -> None:
        self._versions = range(first, last + 1)
        self._partitions = [_Partition(each, first, fetch) for each in partitions]

    async def begin(self) -> None:
        """Fetch a short part of each partition. Raises the problem of the first that cannot be read, before anything
        is sent.
        """
        for at, partition in enumerate(self._partitions):
            self._begin_from(at)
            await partition.arrive()

    async def pieces(self) -> AsyncGenerator[VersionLines]:
        """Yield the pieces of each version, partition after partition. Raises the problem of one that cannot be read,
        and LineageChangedError for a version that was committed anew meanwhile.
        """
        for version in self._versions:
            committed_at_us: set[int] = set()
            for at, partition in enumerate(self._partitions):
                is_whole = False
                while not is_whole:
                    self._begin_from(at)
                    piece = await partition.next()
                    is_whole = piece.is_whole
                    if piece.committed_at_us is not None:
                        committed_at_us.add(piece.committed_at_us)
                    if len(committed_at_us) > 1:
                        raise LineageChangedError(f"version {version} was committed anew while its changes were read")
                    yield piece

    def _begin_from(self, at: int) -> None:
        for each in self._partitions[at : at + 1 + PARTITIONS_AHEAD]:
            each.begin()

    async def close(self) -> None:
        """End what is on its way."""
        coming = [each.coming for each in self._partitions if each.coming is not None]
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
