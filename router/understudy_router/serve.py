"""`understudy router`: one process that answers lookups by asking the best node. Started by its entry point.

Everything that can be refused is refused before the port opens: settings and the port. A bus that cannot be reached is
not: the router waits for it, and says so.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy_router.http.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.clock import SystemClock
from understudy_shared.http.service import BACKLOG, Departure, bound_socket, run
from understudy_shared.private_files import keep_files_private
from understudy_shared.remembered import Remembered
from understudy_shared.seeds import parse_seeds
from understudy_shared.words import HostInfo


def main(settings: dict[str, object], started: Callable[[Router], None] | None = None) -> None:
    """Serve until interrupted. `started` gets the router before the first request, for a progress display.

    Raises UnderstudyError for what the caller can fix: the settings, the port.
    """
    parsed = RouterSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    parse_seeds(parsed.seed)
    keep_files_private()
    bus = RedisBus(parsed.redis)
    listener = bound_socket(parsed.host, parsed.port)
    host = HostInfo(parsed.host, listener.getsockname()[1])
    remembered = Remembered(parsed.data_directory, parsed.application_id)
    router = Router(parsed, bus, host=host, clock=SystemClock(), remembered=remembered)
    listener.listen(BACKLOG)
    if started is not None:
        started(router)
    guard = parsed.connection_guard()
    run(create_app(router, guard), listener, Departure(router.leave, parsed.shutdown_delay_ms), guard)
