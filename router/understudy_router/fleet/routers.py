"""The routers of many applications in one process: opened when a node sends a heartbeat, closed after a long silence.

Applications are found by the keys of their nodes, listed every few seconds, and sooner after an announcement. An
announcement says only that there may be something new: what a router knows of an application comes from documents that
the application's own key verifies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from fastapi import APIRouter
from prometheus_client.core import Metric

from understudy_router.fleet.held import HeldApplication, Shared
from understudy_router.fleet.reports import FleetReports, fleet_routes
from understudy_router.http.metrics import process_metrics
from understudy_router.settings import RouterSettings
from understudy_shared.auth.principals import matches
from understudy_shared.base.background import sliced
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.texts import clipped
from understudy_shared.base.throttles import Reminder
from understudy_shared.bus.applications import ANNOUNCED, Applications, named
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import applications_on
from understudy_shared.fleet.applications_file import require_id
from understudy_shared.fleet.service import FleetService
from understudy_shared.server.app import CAUSES_OF_PROCESS, degraded_metric

log = logging.getLogger(__name__)

MAX_STARTING = 16
"""Number of applications that start at the same time: their calls wait for the few connections to the bus."""

UNLISTED = "applications-unlisted"
LEFT_OUT = "applications-left-out"
CAUSES = (UNLISTED, LEFT_OUT)
"""The labels of the metric, with those of the process."""

LET_GO_AFTER_MS = 600_000
"""Time without nodes after which an application is closed; it is found again when it has some."""

MAX_APPLICATIONS = 1000
LOOK_EVERY_MS = 3000
NEWS_EVERY_MS = 250
"""The time between two looks after an announcement: the query has no nodes before some have opened its checkpoint."""

NEWS_LAST_MS = 10_000
MAX_KEYS = 32 * MAX_APPLICATIONS
"""Most keys that a search lists: the nodes and the documents of all applications."""


def parse_patterns(text: str) -> tuple[str, ...]:
    """Parse patterns that are separated by commas. Raises SettingsError."""
    patterns = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(patterns):
        fix = "Write patterns such as '*' or 'orders-*,flights'"
        raise SettingsError(f"{clipped(text)} has a pattern without a character", where="applications", fix=fix)
    return patterns


class Wanted(NamedTuple):
    """The applications to open next, in order. `left_out` are those beyond the limit of a process."""

    new: list[str]
    left_out: list[str]


def wanted(heard: Iterable[str], patterns: Sequence[str], served: Collection[str]) -> Wanted:
    """Choose the applications that are heard and to be served, but are not yet; up to MAX_APPLICATIONS in all."""
    found = sorted(name for name in heard if name not in served and _is_usable(name))
    matching = [name for name in found if any(matches(pattern, name) for pattern in patterns)]
    room = max(0, MAX_APPLICATIONS - len(served))
    return Wanted(matching[:room], matching[room:])


def _is_usable(application_id: str) -> bool:
    try:
        require_id(application_id)
    except SettingsError:
        return False
    return True


class Discovery:
    """The looks for applications that have nodes. `found` gets the ids of each look, and whether they are all."""

    def __init__(self, bus: Bus, found: Callable[[Collection[str], bool], Awaitable[None]], *, clock: Clock) -> None:
        self.lost_why: str | None = None
        """The reason why the last look failed."""
        self.is_listed = False
        """Whether a search was complete."""
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
        self.is_listed = True

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


class RouterFleet(FleetService[HeldApplication]):
    """The routers of a process."""

    settings: RouterSettings

    def __init__(self, settings: RouterSettings, shared: Shared) -> None:
        """Make the parts of the process. Raises SettingsError for unusable patterns."""
        self._shared = shared
        super().__init__("router", settings, shared.host, shared.access, shared.guard)
        self._patterns = parse_patterns(settings.applications)
        self._discovery = Discovery(shared.bus, self._found, clock=shared.clock)
        self._left_out: str | None = None
        """The reason why some applications are not served; None: all are."""
        self._starting = asyncio.Semaphore(MAX_STARTING)

    def __repr__(self) -> str:
        return f"RouterFleet({len(self.applications)} applications)"

    # ---- the life of the process

    def routes(self) -> Iterator[APIRouter]:
        yield fleet_routes(FleetReports(self.applications, self._shared.clock, self.unknown_why))

    async def start(self) -> None:
        await self._discovery.look()
        self.tasks.start("look for applications", self._discovery.run())
        self.tasks.start("listen for announcements", self._discovery.listen())

    async def stop(self) -> None:
        await asyncio.gather(*[self._close(each) for each in list(self.applications)])
        if self._shared.connections is not None:
            self._shared.connections.close()
        await self._shared.bus.close()

    async def _found(self, heard: Collection[str], is_all: bool) -> None:
        """Open what is new, and close what has had no nodes for long: only a complete search shows that."""
        for application_id in heard:
            if application_id in self.applications:
                self.applications[application_id].heard()
        found = wanted(heard, self._patterns, self.applications)
        self._leave_out(found.left_out, is_all=is_all)
        opening = (self._opening(application_id) for application_id in found.new)
        opened = [each async for few in sliced(opening) for each in few]  # each takes some ms of the loop
        await asyncio.gather(*[self._start(each) for each in opened if each is not None])
        for application_id, held in list(self.applications.items()) if is_all else ():
            if held.silent_ms > LET_GO_AFTER_MS:
                log.info("%s is let go: it has no nodes", application_id, extra={"action": "application-idle"})
                await self._close(application_id)

    def _leave_out(self, names: Sequence[str], *, is_all: bool) -> None:
        """Say once that there are more applications than a process serves, and keep it for the status."""
        why = None if is_all else "Redis has more keys than a look lists: there may be applications that are not found"
        if names:
            why = f"{len(names)} applications are left out, above {MAX_APPLICATIONS}: {named(names)}"
        if why is not None and self._left_out is None:
            log.warning("%s; choose fewer with --applications", why, extra={"action": "applications-left-out"})
        self._left_out = why

    def _opening(self, application_id: str) -> HeldApplication | None:
        """Make the router of an application, and its routes; None if it cannot be made now."""
        try:
            return HeldApplication(self.settings.within(application_id), self._shared)
        except UnderstudyError as error:  # it is tried again at the next look
            log.error("%s cannot be served: %s", application_id, error, extra={"action": "application-failed"})
            return None

    async def _start(self, held: HeldApplication) -> None:
        application_id = held.application_id
        try:
            async with self._starting:
                await held.lifespan.start()
        except UnderstudyError as error:  # it is tried again at the next look
            log.error("%s cannot be served: %s", application_id, error, extra={"action": "application-failed"})
            return
        self.app.add(application_id, held)
        log.info("%s is served", application_id, extra={"action": "application-served", "of": MAX_APPLICATIONS})
        if self.is_leaving:
            await held.leave()

    async def _close(self, application_id: str) -> None:
        held = self.app.remove(application_id)
        assert held is not None, "it is served"
        try:
            await held.app.end_streams()
            await held.lifespan.stop()
        except UnderstudyError as error:
            log.error("%s", error, extra={"action": "application-failed"})

    # ---- what the process says of itself

    def starting(self) -> str | None:
        if self._discovery.is_listed:
            return None
        return f"applications have not been listed yet: {self._discovery.lost_why or 'the first look goes on'}"

    def unknown_why(self) -> str | None:
        return self.starting() or (None if self.applications else "no node of any application is heard yet")

    def own_causes(self) -> Mapping[str, str]:
        lost = self._discovery.lost_why
        found: dict[str, str] = {} if lost is None else {UNLISTED: f"applications cannot be listed: {lost}"}
        if self._left_out is not None:
            found[LEFT_OUT] = self._left_out
        return found

    def metrics(self) -> Iterator[Metric]:
        yield from process_metrics(self.guard, self.access)
        yield degraded_metric("understudy_router_degraded", (*CAUSES, *CAUSES_OF_PROCESS), self.causes())
