"""`understudy router`: answers lookups by asking the best node, in one process or several. Started by its entry point.

Everything that can be refused is refused before the port opens: settings and the port. A bus that cannot be reached is
not: the router waits for it, and says so. It listens last: when it knows enough, or has waited for a moment.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

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
from understudy_shared.processes.link import WorkerLink
from understudy_shared.processes.worker_process import WorkerOrder
from understudy_shared.server.service import Departure, bound_socket, run
from understudy_shared.server.shares import worker_settings
from understudy_shared.server.supervisor import run_workers
from understudy_shared.telemetry.logs import configured_logging, name_records
from understudy_shared.telemetry.span_export import require_exporter

LEARNS_WITHIN_MS = 1500
"""Time that a router that knows too little waits before it listens. It takes some 20 ms where Redis answers. More than
the deadline of a call to a Redis that hangs (1 s): then it goes by what it remembered. Less than a probe waits for an
answer (2 s): without Redis and nodes it must still say in time that it is alive.
"""


class StartedRouter(Protocol):
    """A router, of one process or several, for a progress display."""

    @property
    def host(self) -> HostInfo: ...

    def not_ready(self) -> list[str]: ...


def main(settings: dict[str, object], started: Callable[[StartedRouter], None] | None = None) -> None:
    """Serve until interrupted. `started` gets the router before the first request, for a progress display.

    Raises UnderstudyError for what the caller can fix: the settings, the port.
    """
    parsed = RouterSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    parse_seeds(parsed.seed)
    require_exporter()
    keep_files_private()
    access = access_to(parsed)
    listener = bound_socket(parsed.host, parsed.port)
    host = HostInfo(parsed.host, listener.getsockname()[1])
    name_records(router_id=parsed.name)
    if parsed.processes == 1:
        _serve(parsed, host, access, listener=listener, started=started)
        return
    own = worker_settings(parsed, parsed.processes, port=host.port)
    order = WorkerOrder("understudy_router.serve:serve_as_worker", own, configured_logging())
    run_workers(
        [order] * parsed.processes, host=host, listener=listener, delay_ms=parsed.shutdown_delay_ms, started=started
    )


def access_to(settings: RouterSettings) -> Access:
    """Make the access rules of this router. Raises SettingsError."""
    return settings.access(settings.application_id, settings.host, is_node=False)


def serve_as_worker(settings: dict[str, Any], link: WorkerLink) -> None:
    """Serve as one process of several; connections come through the link."""
    parsed = RouterSettings(**settings)
    keep_files_private()
    name_records(router_id=parsed.name)
    _serve(parsed, HostInfo(parsed.host, parsed.port), access_to(parsed), link=link)


def _serve(
    settings: RouterSettings,
    host: HostInfo,
    access: Access,
    *,
    listener: socket.socket | None = None,
    link: WorkerLink | None = None,
    started: Callable[[StartedRouter], None] | None = None,
) -> None:
    bus = RedisBus(settings.redis_url)
    auth = settings.message_auth(settings.application_id, sender=f"router {host.host}:{host.port}")
    remembered = Remembered(settings.data_directory, settings.application_id, auth)
    router = Router(
        settings, bus, host=host, clock=SystemClock(), remembered=remembered, auth=auth, identity=access.identity
    )
    guard = settings.connection_guard()
    app = create_app(router, guard, link, access, learns_within_ms=LEARNS_WITHIN_MS)
    listening = None if started is None else partial(started, router)
    run(app, listener, Departure(router.leave, settings.shutdown_delay_ms), guard, link, listening=listening)
