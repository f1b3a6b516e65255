"""The snapshot leases that nodes hold, as one list; and the list of a moment ago, for what is made each second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from understudy_router.admin.snapshot import Document
from understudy_router.questions.moments import SnapshotLeases, listing_document
from understudy_shared.base.clock import Clock

MAX_SHOWN: Final = 50
"""Limit on the leases of the overview. The call that lists them has all."""

LOOK_AGAIN_MS: Final = 2_000
"""Age from which the nodes are asked again while somebody looks."""

FIRST_LOOK_S: Final = 1.0
"""Longest wait for the first list of a router."""


def overview_part(snapshots: Sequence[Document]) -> Document:
    """Return the leases as the overview has them: how many, and those that end first."""
    return {"held": len(snapshots), "leases": list(snapshots[:MAX_SHOWN])}


class RecentSnapshots:
    """The leases as the nodes last reported them. At most one background query of the nodes runs at a time."""

    def __init__(self, leases: SnapshotLeases, clock: Clock) -> None:
        self._leases = leases
        self._clock = clock
        self._last: Sequence[Document] = ()
        self._looked_ms = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def recent(self) -> Sequence[Document]:
        """Return the leases of a moment ago; only the first list is waited for. Begin to ask again when it is due."""
        before, now_ms = self._looking, self._clock.monotonic_ms()
        if before is None or (before.done() and now_ms - self._looked_ms >= LOOK_AGAIN_MS):
            self._looked_ms = now_ms
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="list snapshot leases")
            if before is None:
                await asyncio.wait([self._looking], timeout=FIRST_LOOK_S)
        return self._last

    def end(self) -> None:
        """Look no more: the router stops."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        self._last = listing_document(await self._leases.listed())["snapshots"]
