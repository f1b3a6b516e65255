"""`understudy router`: answers lookups by asking the best node. Started by its entry point.

Everything that can be refused is refused before the port opens: settings and the port. A bus that cannot be reached is
not: the router waits for it, and says so. It listens last: when it knows enough, or has waited for a moment.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from understudy_router.fleet.patterns import parse_patterns
from understudy_router.fleet.routers import RouterFleet
from understudy_router.http.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.private_files import keep_files_private
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.cluster.remembered import Remembered
from understudy_shared.cluster.seeds import parse_seeds
from understudy_shared.server.service import Departure, bound_socket, run
from understudy_shared.telemetry.logs import name_records
from understudy_shared.telemetry.span_export import require_exporter

LEARNS_WITHIN_MS = 1500
"""Time that a router that knows too little waits before it listens. It takes some 20 ms where Redis answers. More than
the deadline of a call to a Redis that hangs (1 s): then it goes by what it remembered. Less than a probe waits for an
answer (2 s): without Redis and nodes it must still say in time that it is alive.
"""


class StartedRouter(Protocol):
    """A router of one application or of many, for a progress display."""

    @property
    def host(self) -> HostInfo: ...

    def not_ready(self) -> list[str]: ...


def main(settings: dict[str, object], started: Callable[[StartedRouter], None] | None = None) -> None:
    """Serve until interrupted. `started` gets the router before the first request, for a progress display.

    Raises UnderstudyError for what the caller can fix: the settings, the port.
    """
    parsed = RouterSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    parse_seeds(parsed.seed)
    if parsed.applications:
        parse_patterns(parsed.applications)
    require_exporter()
    keep_files_private()
    access = parsed.own_access()
    name_records(router_id=parsed.name)
    _serve(parsed, access, bound_socket(parsed.host, parsed.port), started)


def _serve(
    settings: RouterSettings,
    access: Access,
    listener: socket.socket,
    started: Callable[[StartedRouter], None] | None,
) -> None:
    host = HostInfo(settings.host, listener.getsockname()[1])
    bus = RedisBus(settings.redis_url)
    guard = settings.connection_guard()
    run_app = partial(run, listener=listener, guard=guard)
    if settings.applications:
        fleet = RouterFleet(
            settings,
            bus,
            access,
            guard,
            host=host,
            clock=SystemClock(),
            learns_within_ms=LEARNS_WITHIN_MS,
        )
        departure = Departure(fleet.leave, settings.shutdown_delay_ms)
        run_app(fleet.app, departure=departure, listening=None if started is None else partial(started, fleet))
        return
    auth = settings.message_auth(settings.application_id, sender=f"router {host.host}:{host.port}")
    remembered = Remembered(settings.data_directory, settings.application_id, auth)
    router = Router(
        settings, bus, host=host, clock=SystemClock(), remembered=remembered, auth=auth, identity=access.identity
    )
    app = create_app(router, guard, access, learns_within_ms=LEARNS_WITHIN_MS)
    departure = Departure(router.leave, settings.shutdown_delay_ms)
    run_app(app, departure=departure, listening=None if started is None else partial(started, router))
