"""`understudy router`: one process that answers lookups by asking the best node. Started by its entry point.

Everything that can be refused is refused before the port opens: settings and the port. A bus that cannot be reached is
not: the router waits for it, and says so.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable

import uvicorn

from understudy_router.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.clock import SystemClock
from understudy_shared.errors import UnderstudyError
from understudy_shared.http_edge import App
from understudy_shared.words import HostInfo

log = logging.getLogger(__name__)

BACKLOG = 2048

GRACEFUL_SHUTDOWN_S = 10


def main(settings: dict[str, object], started: Callable[[Router], None] | None = None) -> None:
    """Serve until interrupted. `started` is told of the router before the first request, for a progress display.

    Raises UnderstudyError for what the caller can fix: the settings, the port.
    """
    told = RouterSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    bus = RedisBus(told.redis)
    listener = bound_socket(told.host, told.port)
    host = HostInfo(told.host, listener.getsockname()[1])
    router = Router(told, bus, host=host, clock=SystemClock())
    listener.listen(BACKLOG)
    if started is not None:
        started(router)
    run(create_app(router), listener)


def run(app: App, listener: socket.socket) -> None:
    """Serve until interrupted: stop accepting, finish what is in flight, then the lifespan's end."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,  # nobody asks who the client is
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
    )
    service = uvicorn.Server(config)
    service.run(sockets=[listener])
    if not service.started:
        where = "{}:{}".format(*listener.getsockname()[:2]) if listener.fileno() >= 0 else ""
        raise UnderstudyError("the service did not start", where=where, fix="The log above says why")


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has its port and does not listen yet: nobody connects to what may still be refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_listen(error, host, port) from None
    return bound


def _cannot_listen(error: OSError, host: str, port: int) -> UnderstudyError:
    if error.errno == errno.EADDRINUSE:
        return UnderstudyError(
            "the port is in use", where=f"{host}:{port}", fix="Stop what listens there, or give another with --port"
        )
    return UnderstudyError(
        f"cannot listen: {error.strerror or error}", where=f"{host}:{port}", fix="Check --host and --port"
    )
