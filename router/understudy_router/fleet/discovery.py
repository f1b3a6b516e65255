"""The search for applications: the keys of their nodes, listed every few seconds, and sooner after an announcement.

Nothing is taken from an announcement but that there may be something new: what a router knows of an application comes
from documents that the application's own key verifies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from understudy_router.fleet.patterns import MAX_APPLICATIONS
from understudy_shared.base.clock import Clock
from understudy_shared.base.reminders import Reminder
from understudy_shared.bus.applications import ANNOUNCED, Applications
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import applications_on

log = logging.getLogger(__name__)

LOOK_EVERY_MS = 3000
NEWS_EVERY_MS = 250
"""The time between two looks after an announcement: the query has no nodes before some have opened its checkpoint."""

NEWS_LAST_MS = 10_000
MAX_KEYS = 32 * MAX_APPLICATIONS
"""Most keys that a look lists: the nodes and the documents of all applications."""


class Discovery:
    """The looks for applications that have nodes. `found` gets the ids of each look, and whether they are all."""

    def __init__(self, bus: Bus, found: Callable[[Collection[str], bool], Awaitable[None]], *, clock: Clock) -> None:
        self.lost_why: str | None = None
        """The reason why the last look failed."""
        self._bus = bus
        self._found = found
        self._clock = clock
        self._news_until_ms = float("-inf")
        self._announced = asyncio.Event()
        self._reminder = Reminder()

    async def look(self) -> None:
        """Look once. A bus that is away changes nothing."""
        try:
            applications = await applications_on(self._bus, limit=MAX_KEYS)
        except BusError as error:
            self.lost_why = str(error)
            if self._reminder.is_due(self._clock.monotonic_ms()):
                log.warning("applications cannot be listed: %s", error, extra={"action": "bus-lost"})
            return
        self.lost_why = None
        self._reminder.reset()
        await self._found(_with_nodes(applications), applications.is_all)

    async def run(self) -> None:
        """Look for ever: every few seconds, and more often after an announcement."""
        while True:
            if self._clock.monotonic_ms() < self._news_until_ms:
                await asyncio.sleep(NEWS_EVERY_MS / 1000)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_MS / 1000):
                        await self._announced.wait()
            self._announced.clear()
            await self.look()

    async def listen(self) -> None:
        """Listen for announcements for ever."""
        async for heard in self._bus.listen(ANNOUNCED):
            if isinstance(heard, bytes):
                self._news_until_ms = self._clock.monotonic_ms() + NEWS_LAST_MS
                self._announced.set()


def _with_nodes(applications: Applications) -> set[str]:
    return {name for name, nodes in applications.nodes.items() if nodes}
