"""The announcements of queries on the bus: of any application, as they come, and again every half minute.

A query's key is its own, and signed for its application. The channel that all share says only which key to read.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import clipped
from understudy_shared.base.reminders import Reminder
from understudy_shared.bus.announcement import Announcement
from understudy_shared.bus.applications import ANNOUNCED, MAX_ID_CHARS
from understudy_shared.bus.base import MAX_KEYS_VISITED, Back, Bus, BusError
from understudy_shared.bus.gossip import announcement_on, applications_on, let_go
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.cluster.remembered import Memory, Remembered
from understudy_shared.fleet.announced import MAX_KNOWN, AnnouncedLocations, AnnouncedQueries

log = logging.getLogger(__name__)

LIST_EVERY_MS = 30_000
READ_AGAIN_MS = 300_000
"""Interval at which the announcements of known queries are read again: what changes is published, too."""

MAX_REFUSED = 256
"""Announcements that are not used and have a line in the log each."""


class Announcements:
    """The reader of announcements. `queries` has what was read, and `news` is set when there may be something new."""

    def __init__(
        self,
        bus: Bus,
        auth: MessageAuth,
        queries: AnnouncedQueries,
        clock: Clock,
        remembered: Remembered | None = None,
    ) -> None:
        """Take the parts. `auth` is of the fleet; `remembered` keeps the locations for a start without the bus."""
        self.queries = queries
        self.news = asyncio.Event()
        self.is_read = False
        """Whether they were read once, or could not be."""
        self.lost_why: str | None = None
        """The reason why the last look failed."""
        self._bus = bus
        self._auth = auth
        self._clock = clock
        self._hinted: set[str] = set()
        self._wake = asyncio.Event()
        self._list_due_ms = self._read_due_ms = float("-inf")
        self._reminder = Reminder()
        self._refused: dict[str, str] = {}
        self._memory = Memory(remembered)
        self._saved = 0
        """The revision of what was saved last."""

    async def run(self) -> None:
        """Look for ever: when something is announced, and at intervals."""
        while True:
            try:
                await self.look()
            except BusError as error:
                self.lost_why = str(error)
                self._list_due_ms = self._read_due_ms = float("-inf")
                if not self.is_read:
                    await self._recall()
                    self.is_read = True
                if self._reminder.is_due(self._clock.monotonic_ms()):
                    log.warning("announcements cannot be read: %s", error, extra={"action": "bus-lost"})
                await asyncio.sleep(1)
            else:
                self.lost_why = None
                self._reminder.reset()
                if self._saved != self.queries.revision:
                    self._saved = self.queries.revision
                    self._memory.note(self.queries.locations())
            self.is_read = True
            left_s = (self._list_due_ms - self._clock.monotonic_ms()) / 1000
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0, left_s)):
                    await self._wake.wait()

    async def listen(self) -> None:
        """Listen for ever to which queries are announced."""
        async for heard in self._bus.listen(ANNOUNCED):
            if isinstance(heard, Back):
                self.queries.hear_all(now_ms=self._clock.monotonic_ms())
                self._list_due_ms = self._read_due_ms = float("-inf")
            elif isinstance(heard, bytes) and 0 < len(heard) <= 4 * MAX_ID_CHARS and len(self._hinted) < MAX_KNOWN:
                self._hinted.add(heard.decode(errors="replace"))
            self._wake.set()

    async def remember(self) -> None:
        """Save what changes, for ever."""
        await self._memory.keep()

    async def look(self) -> None:
        """Read what was hinted; when it is time, list all and read what is not known. Raises BusError."""
        self._wake.clear()
        hinted, self._hinted = self._hinted, set()  # what is hinted meanwhile is read at the next look, after the list
        try:
            for application_id in sorted(hinted):
                await self._read(application_id, is_news=True)
                hinted.remove(application_id)
        finally:
            self._hinted |= hinted
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._list_due_ms:
            return
        is_read_again = now_ms >= self._read_due_ms
        self._list_due_ms = now_ms + LIST_EVERY_MS  # a loss that is over meanwhile sets it anew
        self._read_due_ms = now_ms + READ_AGAIN_MS if is_read_again else self._read_due_ms
        found = await applications_on(self._bus, limit=MAX_KEYS_VISITED)
        for application_id in sorted(found.announced):
            is_known = application_id in self.queries
            if is_read_again if is_known else len(self.queries) < MAX_KNOWN:
                await self._read(application_id, is_news=False)

    async def let_go(self, application_id: str) -> None:
        """Let a query go, here and at all nodes, until it is announced again. Raises BusError, or UnderstudyError for
        an announcement that is not used.
        """
        auth = self._auth.within(application_id)
        found = await announcement_on(self._bus, auth, application_id)
        # Where it was deleted, other nodes still serve it: they must read that it goes.
        await let_go(self._bus, auth, found or Announcement(application_id=application_id, query_id="none", stores=[]))
        self._forget(application_id)

    async def _recall(self) -> None:
        """Take what this process knew before: the bus is away."""
        found = await self._memory.load(AnnouncedLocations)
        for application_id, location in ({} if found is None else found.locations).items():
            self.queries.read(application_id, location, now_ms=self._clock.monotonic_ms())
        self.news.set()

    async def _read(self, application_id: str, *, is_news: bool) -> None:
        """Read one announcement. Without a location it lets the query go; one that cannot be used changes nothing."""
        try:
            found = await announcement_on(self._bus, self._auth.within(application_id), application_id)
        except BusError:
            raise
        except UnderstudyError as error:
            self._refuse(application_id, str(error))
            return
        self._refused.pop(application_id, None)
        if found is None:  # a process without the key can delete it, too: that lets nothing go
            return
        if found.checkpoint is None:
            self._forget(application_id)
            return
        note = self.queries.hear if is_news else self.queries.read
        note(application_id, found.checkpoint, now_ms=self._clock.monotonic_ms())
        self.news.set()

    def _forget(self, application_id: str) -> None:
        self.queries.forget([application_id])
        self.news.set()

    def _refuse(self, application_id: str, why: str) -> None:
        if self._refused.get(application_id) == why or len(self._refused) >= MAX_REFUSED:
            return
        self._refused[application_id] = why
        log.warning(
            "the announcement of %s is left out: %s", clipped(application_id), why,
            extra={"action": "bad-message", "kind": "announcement"},
        )  # fmt: skip
