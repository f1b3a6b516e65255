"""`understudy router`: answers lookups by asking the best node. Started by its entry point.

Everything that can be refused is refused before the port opens: settings and the port. An unreachable bus is not: the
router waits for it, and says so. It listens last: when it knows enough, or has waited a moment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from understudy_router.fleet import HeldApplication, RouterFleet, RouterProcess, parse_patterns
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.files import keep_files_private
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.cluster.without_bus import parse_seeds
from understudy_shared.http.edge import App
from understudy_shared.server.service import Departure, bound_socket, run
from understudy_shared.telemetry.logs import name_records
from understudy_shared.telemetry.span_export import require_exporter

LEARNS_WITHIN_MS = 1500
"""Time that a router that knows too little waits before it listens. With Redis it takes some 20 ms. It is more than the
deadline of a call to a Redis that hangs (1 s): then it uses what it remembered. It is less than a probe waits for an
answer (2 s): without Redis and nodes it must still say in time that it is alive.
"""


StartedRouter = Router | RouterFleet
"""A router of one application, or the routers of many, for a progress display."""


def main(settings: dict[str, object], started: Callable[[StartedRouter], None] | None = None) -> None:
    """Serve until interrupted. `started` gets what is served before the first request, for a progress display.

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
    listener = bound_socket(parsed.host, parsed.port)
    host, guard = HostInfo(parsed.host, listener.getsockname()[1]), parsed.connection_guard()
    bus = RedisBus(parsed.redis_url)
    shared = RouterProcess(parsed, bus, access, guard, host, clock=SystemClock(), learns_within_ms=LEARNS_WITHIN_MS)
    app: App
    served: StartedRouter
    if parsed.applications:
        served = RouterFleet(parsed, shared)
        app = served.app
    else:  # the only application answers for the process, without a dispatcher
        held = HeldApplication(parsed, shared)
        app, served = held.app, held.router
    listening = None if started is None else partial(started, served)
    run(app, listener, Departure(served.leave, parsed.shutdown_delay_ms), guard, listening=listening)
