"""The choice of what a process of several applications serves: the command's, those of the file, and those that
announced themselves. What changes is taken while it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from understudy_node.fleet.announcements import Announcements
from understudy_node.fleet.settings import NodeFleetSettings
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import clipped
from understudy_shared.base.watched_file import WatchedFile
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus
from understudy_shared.cluster.remembered import Remembered
from understudy_shared.fleet.announced import MAX_ANNOUNCED, AnnouncedQueries, Wanted, merged
from understudy_shared.fleet.applications_file import ApplicationSpec, changes
from understudy_shared.fleet.checkpoint_roots import CheckpointRoot
from understudy_shared.fleet.choosing import FLEET

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
PAUSE_S = 0.2
"""Least time between two looks: many may announce themselves at once, and one choice is for all of them."""

CHOOSE_EVERY_MS = 10_000
"""Interval at which the queries are judged again although nothing was announced: their age decides, too."""

MAX_SHOWN = 3
"""Conflicts that the status shows."""

MAX_LOGGED = 1024
"""Queries whose fate has a line in the log each."""

FILE_REFUSED = "applications-file"
LEFT_OUT = "announced-applications"
ANNOUNCEMENTS_LOST = "announcements"
CAUSES = (FILE_REFUSED, LEFT_OUT, ANNOUNCEMENTS_LOST)
"""The labels of the metric, with those of the process."""

FLEET_FOLDER = "@fleet"
"""The folder of what the process itself keeps: the folder of an application has no such character in its name."""

ACTION = {"action": "applications"}


@dataclass(frozen=True, slots=True)
class Announcing:
    """The announcements of queries, and the rules for them."""

    announcements: Announcements
    roots: Sequence[CheckpointRoot]
    removes_idle: bool
    """Whether a query that is idle is let go."""


def announcing_of(settings: object, bus: Bus | None, host: HostInfo, clock: Clock) -> Announcing | None:
    """Return what queries announce to a process with these settings; None where it has no roots."""
    if not isinstance(settings, NodeFleetSettings) or not (roots := settings.roots):
        return None
    assert bus is not None, "a node has one"
    auth = settings.message_auth(FLEET, sender=settings.node_id or f"{host.host}:{host.port}")
    remembered = Remembered(settings.data_directory / FLEET_FOLDER, FLEET, auth)
    queries = AnnouncedQueries(forget_after_ms=settings.forget_after_ms)
    return Announcing(Announcements(bus, auth, queries, clock, remembered), roots, settings.remove_idle)


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
        self.starting = None if announcing is None else "announcements have not been read yet"
        """The reason why it is not known yet what is wanted."""
        self._version_of = version_of
        self._clock = clock
        self._revision = -1
        self._choose_due_ms = float("-inf")
        self._logged: set[tuple[str, str]] = set()

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what runs as long as the process, by name."""
        found: dict[str, Coroutine[Any, Any, None]] = {"follow the list of applications": self.run()}
        if self.announcing is not None:
            announcements = self.announcing.announcements
            found |= {
                "read announcements": announcements.run(),
                "listen for announcements": announcements.listen(),
                "remember announcements": announcements.remember(),
            }
        return found

    async def run(self) -> None:
        """Take changes for ever."""
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
        """Look once."""
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
        """Return what names an application, in words: the command or the file; None: neither does."""
        if any(each.id == application_id for each in self._named):
            return "the command that started this process"
        if self._file is not None and any(each.id == application_id for each in self._file.value):
            return f"the file {self._file.path}"
        return None

    def idle(self, application_id: str) -> str | None:
        """Return why an application counts as idle; None while it does not."""
        return "no commit and no announcement for long" if application_id in self.wanted.idle else None

    def causes(self) -> Mapping[str, str]:
        """Return what of the file and of announcements is wrong."""
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
        """Log what comes and goes, and once what is left out."""
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
