"""The choice of what a process of several applications serves: from the command, from the file, and from announcements.
Changes take effect while it runs.

Announcements are read as they come, and again every half minute. Each query has its own key, signed for its
application. The shared channel says only which key to read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from understudy_node.cluster.member import Clusters
from understudy_node.settings import ClusterNodeSettings
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.files import WatchedFile
from understudy_shared.base.texts import clipped
from understudy_shared.base.throttles import Reminder
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import MAX_KEYS_VISITED, Back, Bus, BusError
from understudy_shared.bus.gossip import ANNOUNCED, MAX_ID_CHARS, announcement_on, applications_on, let_go
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import Announcement
from understudy_shared.cluster.without_bus import Memory, Remembered
from understudy_shared.fleet.announced_applications import (
    MAX_ANNOUNCED,
    MAX_KNOWN,
    AnnouncedLocations,
    AnnouncedQueries,
    CheckpointRoot,
    Wanted,
    merged,
)
from understudy_shared.fleet.applications_file import FLEET, ApplicationSpec, changes

LIST_EVERY_MS = 30_000
READ_AGAIN_MS = 300_000
"""Interval to reread the announcements of known queries: changes are published, too."""

MAX_REFUSED = 256
"""Announcements that are not used and have a line in the log each."""


class Announcements:
    """The reader of announcements. `queries` has what was read, and `news` is set when there may be something new."""

    def __init__(
        self, bus: Bus, auth: MessageAuth, queries: AnnouncedQueries, clock: Clock, remembered: Remembered | None = None
    ) -> None:
        """Take the parts. `auth` is of the fleet; `remembered` keeps the locations for a start without the bus."""
        self.queries = queries
        self.news = asyncio.Event()
        self.is_read = False
        """Whether they were read once, or could not be."""
        self.lost_why: str | None = None
        self._bus = bus
        self._auth = auth
        self._clock = clock
        self._hinted: set[str] = set()
        self._wake = asyncio.Event()
        self._list_due_ms = self._read_due_ms = float("-inf")
        self._reminder = Reminder()
        self._refused: dict[str, str] = {}
        self.memory = Memory(remembered)
        self._saved = -1

    async def run(self) -> None:
        while True:
            try:
                await self.look()
                if not self.is_read:
                    await self._recall(is_away=False)
            except BusError as error:
                self.lost_why = str(error)
                self._list_due_ms = self._read_due_ms = float("-inf")
                if not self.is_read:
                    await self._recall(is_away=True)
                    self.is_read = True
                if self._reminder.is_due(self._clock.monotonic_ms()):
                    log.warning("announcements cannot be read: %s", error, extra={"action": "bus-lost"})
                await asyncio.sleep(1)
            else:
                self.lost_why = None
                self._reminder.reset()
                if self._saved != self.queries.revision:
                    self._saved = self.queries.revision
                    self.memory.note(self.queries.locations())
            self.is_read = True
            left_s = (self._list_due_ms - self._clock.monotonic_ms()) / 1000
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0, left_s)):
                    await self._wake.wait()

    async def listen(self) -> None:
        async for heard in self._bus.listen(ANNOUNCED):
            if isinstance(heard, Back):
                self.queries.hear_all(now_ms=self._clock.monotonic_ms())
                self._list_due_ms = self._read_due_ms = float("-inf")
            elif isinstance(heard, bytes) and 0 < len(heard) <= 4 * MAX_ID_CHARS and len(self._hinted) < MAX_KNOWN:
                self._hinted.add(heard.decode(errors="replace"))
            self._wake.set()

    async def look(self) -> None:
        """Read the announcements that were hinted at; when it is due, list all and read the unknown ones, at times also
        the known ones. Raises BusError.
        """
        self._wake.clear()
        hinted, self._hinted = self._hinted, set()  # later hints are read at the next poll, after the list
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
        """Remove a query, here and at all nodes, until it is announced again. Raises BusError, or UnderstudyError for
        an announcement that is not used.
        """
        auth = self._auth.within(application_id)
        found = await announcement_on(self._bus, auth, application_id)
        # Even if it was deleted, other nodes still serve the query: they must read that it is removed.
        await let_go(self._bus, auth, found or Announcement(application_id=application_id, query_id="none", stores=[]))
        self._forget(application_id)

    async def _recall(self, *, is_away: bool) -> None:
        """Take what this process knew before and Redis does not tell: it is away, or lost its keys. Raises BusError."""
        found = await self.memory.load(AnnouncedLocations)
        for application_id, location in ({} if found is None else found.locations).items():
            if application_id in self.queries or (not is_away and await self._read(application_id, is_news=False)):
                continue
            self.queries.read(application_id, location, now_ms=self._clock.monotonic_ms())
        self.news.set()

    async def _read(self, application_id: str, *, is_news: bool) -> bool:
        """Read one announcement. Without a location it removes the query; an unusable one changes nothing. Return
        whether there is a usable one.
        """
        try:
            found = await announcement_on(self._bus, self._auth.within(application_id), application_id)
        except BusError:
            raise
        except UnderstudyError as error:
            self._refuse(application_id, str(error))
            return False
        self._refused.pop(application_id, None)
        if found is None:  # a process without the key can delete it, too: that removes nothing
            return False
        if found.checkpoint is None:
            self._forget(application_id)
            return True
        note = self.queries.hear if is_news else self.queries.read
        note(application_id, found.checkpoint, now_ms=self._clock.monotonic_ms())
        self.news.set()
        return True

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


log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
PAUSE_S = 0.2
"""Least time between two polls: many queries may be announced at once, and one choice covers them all."""

CHOOSE_EVERY_MS = 10_000
"""Interval to judge the queries again without an announcement: their age decides, too."""

MAX_SHOWN = 3
"""Conflicts that the status shows."""

MAX_LOGGED = 1024
"""Number of queries with a log line each."""

FILE_REFUSED = "applications-file"
LEFT_OUT = "announced-applications"
ANNOUNCEMENTS_LOST = "announcements"
CAUSES = (FILE_REFUSED, LEFT_OUT, ANNOUNCEMENTS_LOST)
"""The labels of the metric, with the process's."""

FLEET_FOLDER = "@fleet"
"""The folder of the process's own files: an application's folder has no such character in its name."""

ACTION = {"action": "applications"}


@dataclass(frozen=True, slots=True)
class Announcing:
    """The announcements of queries, and the rules for them."""

    announcements: Announcements
    roots: Sequence[CheckpointRoot]
    removes_idle: bool


def announcing_of(settings: object, clusters: Clusters | None, host: HostInfo, clock: Clock) -> Announcing | None:
    """Return what queries announce to a process with these settings; None where it has no roots."""
    if not isinstance(settings, ClusterNodeSettings) or not (roots := settings.roots):
        return None
    assert clusters is not None, "a node of a cluster has them"
    auth = settings.message_auth(FLEET, sender=settings.node_id or f"{host.host}:{host.port}")
    remembered = Remembered(settings.data_directory / FLEET_FOLDER, FLEET, auth)
    queries = AnnouncedQueries(forget_after_ms=settings.forget_after_ms)
    return Announcing(Announcements(clusters.bus, auth, queries, clock, remembered), roots, settings.remove_idle)


class Following:
    """The applications that are wanted now (`wanted`). `want` gets them when they change; `version_of` is the newest
    version of one.
    """

    def __init__(
        self,
        want: Callable[[Iterable[ApplicationSpec]], None],
        file: WatchedFile[tuple[ApplicationSpec, ...]] | None,
        named: Sequence[ApplicationSpec],
        *,
        announcing: Announcing | None,
        version_of: Callable[[str], int | None],
        clock: Clock,
    ) -> None:
        self.wanted = merged((), (), ())
        self._want = want
        self._file = file
        self._named = tuple(named)
        self.announcing = announcing
        self.starting: str | None = "the applications to serve have not been read yet"
        """The reason why it is not known yet what is wanted."""
        self._version_of = version_of
        self._clock = clock
        self._revision = -1
        self._choose_due_ms = float("-inf")
        self._logged: set[tuple[str, str]] = set()

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        found: dict[str, Coroutine[Any, Any, None]] = {"follow the list of applications": self.run()}
        if self.announcing is not None:
            announcements = self.announcing.announcements
            found |= {
                "read announcements": announcements.run(),
                "listen for announcements": announcements.listen(),
                "remember announcements": announcements.memory.keep(),
            }
        return found

    async def run(self) -> None:
        while True:
            await self.step()
            if self.announcing is None:
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            await asyncio.sleep(PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self.announcing.announcements.news.wait()

    async def step(self) -> None:
        is_changed = self._revision < 0
        if self._file is not None:
            before = self._file.value
            if await asyncio.to_thread(self._file.look):
                is_changed = True
                for event in changes(before, self._file.value).events():
                    log.warning("applications: %s", event, extra=ACTION)
        listed = (*self._named, *(() if self._file is None else self._file.value))
        if self.announcing is not None:
            is_read = self.announcing.announcements.is_read
            await self._follow(self.announcing, listed, is_changed=is_changed)
            self.starting = None if is_read else self.starting
        elif is_changed:
            self._revision = 0
            self.wanted = merged(listed, (), ())
            self._want(self.wanted.specs)
            self.starting = None

    async def _follow(self, announcing: Announcing, listed: Sequence[ApplicationSpec], *, is_changed: bool) -> None:
        announcements, now_ms = announcing.announcements, self._clock.monotonic_ms()
        announcements.news.clear()
        queries = announcements.queries
        for spec in self.wanted.announced:
            queries.commit(spec.id, self._version_of(spec.id), now_ms=now_ms)
        if not is_changed and queries.revision == self._revision and now_ms < self._choose_due_ms:
            return
        self._revision, self._choose_due_ms = queries.revision, now_ms + CHOOSE_EVERY_MS
        before = self.wanted
        served = {each.id for each in before.announced}
        # Ten thousand queries take a while.
        self.wanted = await asyncio.to_thread(merged, listed, queries.queries(now_ms=now_ms), announcing.roots, served)
        self._log(before)
        self._want(self.wanted.specs)
        if announcing.removes_idle:
            await self._let_idle_go(announcements)

    async def _let_idle_go(self, announcements: Announcements) -> None:
        for application_id in sorted(self.wanted.idle):
            try:
                await announcements.let_go(application_id)
            except UnderstudyError as error:  # it is tried again at the next choice
                log.warning("%s is idle and is not let go: %s", clipped(application_id), error, extra=ACTION)
                return
            log.warning("applications: %s is let go: it is idle", clipped(application_id), extra=ACTION)

    def place_of(self, application_id: str) -> str | None:
        """Return in words where an application is named: in the command or the file; None: in neither."""
        if any(each.id == application_id for each in self._named):
            return "the command that started this process"
        if self._file is not None and any(each.id == application_id for each in self._file.value):
            return f"the file {self._file.path}"
        return None

    def idle(self, application_id: str) -> str | None:
        """Return why an application counts as idle; None while it does not."""
        return "no commit and no announcement for long" if application_id in self.wanted.idle else None

    def causes(self) -> Mapping[str, str]:
        """Return what is wrong with the file and the announcements, by cause."""
        found: dict[str, str] = {}
        if self._file is not None and self._file.refused is not None:
            found[FILE_REFUSED] = self._file.refused
        problems = list(self.wanted.problems[:MAX_SHOWN])
        if len(self.wanted.problems) > MAX_SHOWN:
            problems.append(f"and {len(self.wanted.problems) - MAX_SHOWN} more conflicts")
        if self.wanted.too_many:
            problems.append(f"{self.wanted.too_many} have no place: {MAX_ANNOUNCED} are served")
        if problems:
            found[LEFT_OUT] = "; ".join(problems)
        if self.announcing is not None and self.announcing.announcements.lost_why is not None:
            found[ANNOUNCEMENTS_LOST] = f"they cannot be read: {self.announcing.announcements.lost_why}"
        return found

    def _log(self, before: Wanted) -> None:
        """Log added and removed applications, and once each that is left out."""
        old, new = ({each.id for each in wanted.announced} for wanted in (before, self.wanted))
        for verb, names in (("announced itself", new - old), ("is served no longer", old - new)):
            for name in sorted(names):
                log.info("applications: %s %s", clipped(name), verb, extra=ACTION)
        if self.wanted.too_many and not before.too_many:
            text = "applications: %d announced ones have no place: %d are served"
            log.warning(text, self.wanted.too_many, MAX_ANNOUNCED, extra=ACTION)
        conflicts = [("", problem) for problem in self.wanted.problems]
        for name, why in [*conflicts, *self.wanted.left_out.items()]:
            if (name, why) not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add((name, why))
                said = f"{clipped(name)} is announced and left out: {why}" if name else why
                log.warning("applications: %s", said, extra=ACTION)
