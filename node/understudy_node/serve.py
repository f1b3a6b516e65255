"""`understudy serve CHECKPOINT`: one process that follows a checkpoint and answers over HTTP.

The command line starts this by its entry point. Everything that can be refused is refused before the port opens.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
from collections.abc import Callable

import uvicorn

from understudy_node.app import create_app
from understudy_node.checkpoint.files import open_checkpoint_files
from understudy_node.node import Node
from understudy_node.settings import NodeSettings
from understudy_shared.clock import SystemClock
from understudy_shared.errors import UnderstudyError
from understudy_shared.http_edge import App
from understudy_shared.words import HostInfo

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long a worker thread may keep the interpreter from the event loop (5 ms by default): lookups come first."""

BACKLOG = 2048

GRACEFUL_SHUTDOWN_S = 10


def main(settings: dict[str, object], started: Callable[[Node], None] | None = None) -> None:
    """Serve until interrupted. `started` is told of the node before the first request, for a progress display.

    Raises UnderstudyError for what the caller can fix: the checkpoint, the settings, the port.
    """
    node, listener = open_node(NodeSettings(**settings))  # type: ignore[arg-type]  # pydantic validates
    if started is not None:
        started(node)
    run(create_app(node), listener)


def open_node(settings: NodeSettings, *, advertised_host: str = "") -> tuple[Node, socket.socket]:
    """The node, not yet following, and the socket it will answer on: everything that can be refused, is."""
    listener = _bound_socket(settings.host, settings.port)
    port = listener.getsockname()[1]
    try:
        files = open_checkpoint_files(settings.checkpoint)
        host = HostInfo(advertised_host or settings.host, port)
        node = Node(settings, files, host=host, clock=SystemClock())
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(error, settings.host, port) from None
    except BaseException:
        listener.close()
        raise
    return node, listener


def run(app: App, listener: socket.socket) -> None:
    """Serve until interrupted."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_file_limit()
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # ASGI as uvicorn spells it
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
    )
    service = uvicorn.Server(config)
    service.run(sockets=[listener])
    if not service.started:
        where = "{}:{}".format(*listener.getsockname()[:2]) if listener.fileno() >= 0 else ""
        raise UnderstudyError("the service did not start", where=where, fix="The log above says why")


def _raise_file_limit() -> None:
    """Open tables take a descriptor each: use all that the system allows this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    log.info("file descriptors", extra={"action": "file-limit", "limit": hard})


def _bound_socket(host: str, port: int) -> socket.socket:
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
