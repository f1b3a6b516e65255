"""The routers of many applications in one process: opened when nodes of theirs are heard, let go when long unheard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client.core import Metric

from understudy_router.fleet.discovery import Discovery
from understudy_router.fleet.held import HeldApplication
from understudy_router.fleet.patterns import MAX_APPLICATIONS, parse_patterns, wanted
from understudy_router.fleet.reports import FleetReports
from understudy_router.fleet.routes import fleet_routes
from understudy_router.http.app import create_app
from understudy_router.http.metrics import process_metrics
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_router.transport.node_connections import NodeConnections
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.slices import sliced
from understudy_shared.base.supervise import Supervisor
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.applications import named
from understudy_shared.bus.base import Bus
from understudy_shared.cluster.remembered import Remembered
from understudy_shared.fleet.dispatching import Fleet
from understudy_shared.fleet.own_app import OwnApp, OwnProcess
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.probes import CAUSES_OF_PROCESS, degraded_metric
from understudy_shared.server.settings import HttpService

log = logging.getLogger(__name__)

MAX_STARTING = 16
"""Number of applications that start at the same time: their calls wait for the few connections to the bus."""

UNLISTED = "applications-unlisted"
LEFT_OUT = "applications-left-out"
CAUSES = (UNLISTED, LEFT_OUT)
"""The labels of the metric, with those of the process."""

LET_GO_AFTER_MS = 600_000
"""Time without nodes after which an application is let go; it is found again when it has some."""


class RouterFleet(OwnProcess, HttpService):
    """The routers of a process, and the ASGI application in front of them (`app`)."""

    settings: RouterSettings

    def __init__(
        self,
        settings: RouterSettings,
        bus: Bus,
        access: Access,
        guard: ConnectionGuard,
        *,
        host: HostInfo,
        clock: Clock,
        learns_within_ms: int = 0,
        own_ports: Collection[int] = (),
    ) -> None:
        """Make the parts that all applications share. Raises SettingsError for unusable patterns.

        `own_ports`: those of the processes that share a port, this one among them.
        """
        self.settings = settings
        self.host = host
        self.held: dict[str, HeldApplication] = {}
        self.own = OwnApp(
            "router",
            self.held,
            self,
            lifespan=self._lifespan,
            is_guarded=access.is_on,
            own_ports=own_ports,
            more=[fleet_routes(FleetReports(self.held, clock))],
        )
        self.app = Fleet(self.own.app, access)
        self._patterns = parse_patterns(settings.applications)
        self._bus = bus
        self._access = access
        self._guard = guard
        self._clock = clock
        self._learns_within_ms = learns_within_ms
        self._connections = NodeConnections(access.identity)
        self._discovery = Discovery(bus, self._found, clock=clock)
        self._tasks = Supervisor()
        self._leaving = False
        self._left_out: str | None = None
        """The reason why some applications are not served; None: all are."""
        self._starting = asyncio.Semaphore(MAX_STARTING)

    def __repr__(self) -> str:
        return f"RouterFleet({len(self.held)} applications)"

    def not_ready(self) -> list[str]:
        """Return why this process should get no readers; empty when it should get them."""
        return list(self.own.status().reasons)

    async def leave(self) -> None:
        """Announce that the process stops, while it still answers."""
        self._leaving = True
        for held in self.held.values():
            await held.router.leave()

    # ---- the life of the process

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        await self._discovery.look()
        self._tasks.start("look for applications", self._discovery.run())
        self._tasks.start("listen for announcements", self._discovery.listen())
        try:
            yield
        finally:
            await self._tasks.stop()
            await asyncio.gather(*[self._close(each) for each in list(self.held)])
            await self._connections.close()
            await self._bus.close()

    async def _found(self, heard: Collection[str], is_all: bool) -> None:
        """Open what is new, and let go what has had no nodes for long: only a complete look says so."""
        for application_id in heard:
            if application_id in self.held:
                self.held[application_id].heard()
        found = wanted(heard, self._patterns, self.held)
        self._leave_out(found.left_out, is_all=is_all)
        opening = (self._opening(application_id) for application_id in found.new)
        opened = [each async for few in sliced(opening) for each in few]  # each takes some ms of the loop
        await asyncio.gather(*[self._start(each) for each in opened if each is not None])
        for application_id, held in list(self.held.items()) if is_all else ():
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
            return self._made(application_id)
        except UnderstudyError as error:  # it is tried again at the next look
            log.error("%s cannot be served: %s", application_id, error, extra={"action": "application-failed"})
            return None

    def _made(self, application_id: str) -> HeldApplication:
        settings = self.settings.within(application_id)
        auth = settings.message_auth(application_id, sender=f"router {self.host.host}:{self.host.port}")
        router = Router(
            settings,
            self._bus,
            host=self.host,
            clock=self._clock,
            remembered=Remembered(settings.data_directory, application_id, auth),
            auth=auth,
            identity=self._access.identity.within(application_id),
            shared=self._connections,
        )
        app = create_app(router, self._guard, self._access, learns_within_ms=self._learns_within_ms)
        return HeldApplication(router, app, self._clock.wall_us)

    async def _start(self, held: HeldApplication) -> None:
        application_id = held.router.settings.application_id
        try:
            async with self._starting:
                await held.lifespan.start()
        except UnderstudyError as error:  # it is tried again at the next look
            log.error("%s cannot be served: %s", application_id, error, extra={"action": "application-failed"})
            return
        self.held[application_id] = held
        self.app.add(application_id, held)
        log.info("%s is served", application_id, extra={"action": "application-served", "of": MAX_APPLICATIONS})
        if self._leaving:
            await held.router.leave()

    async def _close(self, application_id: str) -> None:
        held = self.held.pop(application_id)
        self.app.remove(application_id)
        try:
            await held.app.end_streams()
            await held.lifespan.stop()
        except UnderstudyError as error:
            log.error("%s", error, extra={"action": "application-failed"})

    # ---- what the process says of itself

    def dead(self) -> str | None:
        return self._tasks.dead

    def causes(self) -> Mapping[str, str]:
        lost = self._discovery.lost_why
        found: dict[str, str] = {} if lost is None else {UNLISTED: f"applications cannot be listed: {lost}"}
        if self._left_out is not None:
            found[LEFT_OUT] = self._left_out
        return {**found, **self._guard.causes(), **self._access.causes()}

    def metrics(self) -> Iterator[Metric]:
        yield from process_metrics(self._guard, self._access)
        yield degraded_metric("understudy_router_degraded", (*CAUSES, *CAUSES_OF_PROCESS), self.causes())
