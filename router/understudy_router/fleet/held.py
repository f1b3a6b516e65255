"""One application of a router that serves many: its router, its routes, and what the fleet says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import Metric

from understudy_router.http.lookups import RouterLookups
from understudy_router.router import Router
from understudy_shared.fleet.lifespans import Lifespan
from understudy_shared.fleet.reporting import ApplicationReport, State
from understudy_shared.http.status import Status

HOLDS_UP_MS = 30_000
"""Longest time for which an application that knows too little keeps the process from being ready."""

IDLE_AFTER_MS = 60_000
"""Time without nodes after which an application is listed as idle."""


class HeldApplication:
    """A router and its routes. `heard` notes that it has nodes."""

    def __init__(self, router: Router, app: RouterLookups, wall_us: Callable[[], int]) -> None:
        self.router = router
        self.app = app
        self.lifespan = Lifespan(app, router.settings.application_id)
        self._wall_us = wall_us
        self._began_ms = self._heard_ms = router.now_ms()
        self._was_ready = False
        self._state = State.OPENING
        self._since_us = wall_us()

    def __repr__(self) -> str:
        return f"HeldApplication({self.router.settings.application_id}, {self._state})"

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
            application_id=self.router.settings.application_id,
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
