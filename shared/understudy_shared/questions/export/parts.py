"""The parts of an export in their order, while those that come next are fetched.

The order is that of a scan: partition after partition. While a part is sent, the next one of its partition and the
first ones of the next partitions are on their way, so that a reader waits for nodes once, and nodes work at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, NamedTuple

from understudy_shared.questions.export.hop import ExportPart
from understudy_shared.questions.scan.page import Place

PARTITIONS_AHEAD: Final = 2
"""Number of partitions whose first part is fetched ahead. With the part that is sent and the one behind it, an export
holds two parts more than that.
"""

FetchPart = Callable[[Place, int | None], Coroutine[None, None, ExportPart]]
"""A function that reads the part behind a place. It is given the partition that comes next, None at the last."""


class NumberedPart(NamedTuple):
    """A part of a partition."""

    partition: int
    part: ExportPart


class PartsAhead:
    """The parts of the `partitions` from `start` on."""

    def __init__(self, start: Place, partitions: Sequence[int], fetch: FetchPart) -> None:
        self.partitions = partitions[partitions.index(start.partition) :]
        self._fetch = fetch
        self._left = deque([start, *map(Place, self.partitions[1:])])
        self._coming: deque[tuple[int, asyncio.Task[ExportPart]]] = deque()

    async def next(self) -> NumberedPart | None:
        """Return the next part; None behind the last. Raises its problem."""
        while self._left and len(self._coming) <= PARTITIONS_AHEAD:
            place = self._left.popleft()
            self._coming.append((place.partition, self._begin(place)))
        if not self._coming:
            return None
        partition, task = self._coming[0]
        part = await task
        self._coming.popleft()
        if not part.page.is_end:
            self._coming.appendleft((partition, self._begin(Place(partition, part.page.after))))
        return NumberedPart(partition, part)

    def _begin(self, place: Place) -> asyncio.Task[ExportPart]:
        at = self.partitions.index(place.partition) + 1
        following = self.partitions[at] if at < len(self.partitions) else None
        return asyncio.get_running_loop().create_task(self._fetch(place, following), name="fetch a part of an export")

    async def close(self) -> None:
        """End what is on its way."""
        self._left.clear()
        for _, task in self._coming:
            task.cancel()
        await asyncio.gather(*(task for _, task in self._coming), return_exceptions=True)
        self._coming.clear()
