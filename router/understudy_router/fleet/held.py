"""One application of a router, the only one or one of many: its router, its routes, and its report to a fleet."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from understudy_router.http.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_router.transport.client_context import NodeConnections
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus
from understudy_shared.cluster.without_bus import Remembered
from understudy_shared.fleet.dispatching import Lifespan
from understudy_shared.fleet.service import ApplicationReport, State
from understudy_shared.http.health import Status
from understudy_shared.server.connection_guard import ConnectionGuard

HOLDS_UP_MS = 30_000
"""Longest time for which an application that knows too little keeps the process from being ready."""

IDLE_AFTER_MS = 60_000
"""Time without nodes after which an application is listed as idle."""


class Shared:
    """The parts of a process that all its applications share, also if there is only one."""

    def __init__(
        self,
        settings: RouterSettings,
        bus: Bus,
        access: Access,
        guard: ConnectionGuard,
        host: HostInfo,
        *,
        clock: Clock,
        learns_within_ms: int = 0,
    ) -> None:
        self.bus = bus
        self.access = access
        self.guard = guard
        self.host = host
        self.clock = clock
        self.learns_within_ms = learns_within_ms
        self.connections = NodeConnections() if settings.applications else None
        """The connections to nodes that several applications share; None: the only one has its own, and the bus."""


class HeldApplication:
    """A router and its routes. `heard` notes that it has nodes."""

    def __init__(self, settings: RouterSettings, shared: Shared) -> None:
        """Make the parts; nothing is started. Raises UnderstudyError for unusable settings."""
        self.application_id = settings.application_id
        auth = settings.message_auth(self.application_id, sender=f"router {shared.host.host}:{shared.host.port}")
        self.router = Router(
            settings,
            shared.bus,
            host=shared.host,
            clock=shared.clock,
            remembered=Remembered(settings.data_directory, self.application_id, auth),
            auth=auth,
            identity=shared.access.identity.within(self.application_id),
            shared=shared.connections,
        )
        self.app = create_app(self.router, shared.guard, shared.access, learns_within_ms=shared.learns_within_ms)
        self.lifespan = Lifespan(self.app, self.application_id)
        self._wall_us = shared.clock.wall_us
        self._began_ms = self._heard_ms = self.router.now_ms()
        self._was_ready = False
        self._state = State.OPENING
        self._since_us = self._wall_us()

    def __repr__(self) -> str:
        return f"HeldApplication({self.application_id}, {self._state})"

    async def leave(self) -> None:
        """Announce that it stops, while it still answers."""
        await self.router.leave()

    def heard(self) -> None:
        """Note that the application has nodes."""
        self._heard_ms = self.router.now_ms()

    @property
    def silent_ms(self) -> float:
        """The time without nodes: neither the bus names one nor does the router hear one."""
        return 0.0 if self.router.tables.nodes else self.router.now_ms() - self._heard_ms

    @property
    def may_hold_unseen(self) -> bool:
        """Whether its nodes may hold replicas that this router does not know of: it has read no assignment, and they do
        not say that they wait for the checkpoint.
        """
        tables = self.router.tables
        waits = bool(tables.nodes) and all(each.heartbeat.standing == "waiting" for each in tables.nodes.values())
        return tables.assignment is None and not waits and self.silent_ms <= IDLE_AFTER_MS

    @property
    def is_ready(self) -> bool:
        """Whether it knows its stores."""
        return self.router.watcher.catalogue.stores is not None

    @property
    def was_ready(self) -> bool:
        """Whether it was ready once."""
        return self._was_ready

    @property
    def dead(self) -> str | None:
        """The bug that ended it; None while it lives."""
        return self.router.dead

    def status(self) -> Status:
        """Return its readiness, and its causes of being degraded."""
        found = self.app.report.status_of_application()
        self._was_ready = self._was_ready or not found.reasons
        return found

    def metrics(self) -> Iterable[Metric]:
        """Return its own families, without those of the process."""
        return self.app.report.of_application()

    def report(self) -> ApplicationReport:
        """Return what the list of applications says of it."""
        status, stores, lag = self.status(), self.router.watcher.catalogue.stores, self.app.admin.last_lag()
        reason = "; ".join([*status.reasons, *status.causes.values()]) or None
        is_new = not self._was_ready and self.router.now_ms() - self._began_ms <= HOLDS_UP_MS
        waits = State.OPENING if is_new else State.WAITING
        state = waits if status.reasons else State.SERVING
        if self.silent_ms > IDLE_AFTER_MS:
            state, reason = State.IDLE, "no node of it is heard"
        if state is not self._state:
            self._state, self._since_us = state, self._wall_us()
        return ApplicationReport(
            application_id=self.application_id,
            checkpoint="",
            state=state,
            since_us=self._since_us,
            reason=reason,
            source="heard",
            stores=() if stores is None else tuple(sorted(stores.by_name)),
            end_offset_position=self.router.tables.end_version or None,
            max_offset_lag=None if lag is None else lag["worst_batches"],
            max_time_lag_ms=None if lag is None else lag["worst_ms"],
        )
