"""The explanation for a router that hears no node of its application: the id or the Redis may be mistyped.

Rule: it looks only while the router waits for its first catalogue or assignment and no node lives. Its findings are for
people: no lookup depends on them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from understudy_shared.base.clock import Clock
from understudy_shared.base.reminders import Reminder
from understudy_shared.bus.applications import Applications, unheard_fix, unheard_text
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Gossip

log = logging.getLogger(__name__)

TICK_S = 0.25
LOOK_EVERY_MS = 5000
"""Milliseconds between two listings of the keys, which may belong to other applications."""


class NeighbourApplications:
    """The other applications on the bus, looked up while `is_unheard` says that no node of this application is
    heard.
    """

    def __init__(self, gossip: Gossip, *, where: str, is_unheard: Callable[[], bool], clock: Clock) -> None:
        """Prepare to look on the bus; `where` names it, without its password."""
        self._gossip = gossip
        self._where = where
        self._is_unheard = is_unheard
        self._clock = clock
        self._found: Applications | None = None

    def reason(self) -> str | None:
        """Return a text that no node is heard, and which applications are; `None` while nodes are heard, or before the
        first look.
        """
        if self._found is None or not self._is_unheard():
            return None
        return unheard_text(self._gossip.application_id, self._found, where=self._where)

    def fix(self) -> str | None:
        """Return the reason, and what to do; `None` where there is no reason."""
        if self._found is None or not self._is_unheard():
            return None
        return unheard_fix(self._gossip.application_id, self._found, where=self._where)

    async def run(self) -> None:
        """Look every few seconds while no node is heard, and log it less and less often."""
        reminder = Reminder()
        looked_ms = float("-inf")
        while True:
            now_ms = self._clock.monotonic_ms()
            if not self._is_unheard():
                self._found, looked_ms = None, float("-inf")
                reminder.reset()
            elif now_ms - looked_ms >= LOOK_EVERY_MS:
                looked_ms = now_ms
                await self._look()
                if self._found is not None and reminder.is_due(now_ms):
                    log.warning("%s", self.fix(), extra={"action": "no-nodes"})
            await asyncio.sleep(TICK_S)

    async def _look(self) -> None:
        try:
            self._found = await self._gossip.applications()
        except BusError as error:  # the watcher says that the bus is away
            log.debug("the applications cannot be listed: %s", error, extra={"action": "no-nodes"})
