"""How a service gets its port and serves: what every process with an HTTP face does the same way."""

from __future__ import annotations

import errno
import socket

import uvicorn

from understudy_shared.errors import UnderstudyError
from understudy_shared.http_edge import App

BACKLOG = 2048

GRACEFUL_SHUTDOWN_S = 10


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
        raise cannot_listen(error, host, port) from None
    return bound


def cannot_listen(error: OSError, host: str, port: int) -> UnderstudyError:
    if error.errno == errno.EADDRINUSE:
        return UnderstudyError(
            "the port is in use", where=f"{host}:{port}", fix="Stop what listens there, or give another with --port"
        )
    return UnderstudyError(
        f"cannot listen: {error.strerror or error}", where=f"{host}:{port}", fix="Check --host and --port"
    )
