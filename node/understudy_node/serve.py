"""`understudy serve CHECKPOINT`: one process that follows a checkpoint and answers over HTTP.

The command line starts this by its entry point. Everything that can be refused is refused before the port opens.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable

from understudy_node.checkpoint.arrival import wait_for_checkpoint
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.http.app import create_app
from understudy_node.node import Node
from understudy_node.settings import NodeSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.private_files import keep_files_private
from understudy_shared.base.words import HostInfo
from understudy_shared.http.edge import App
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.service import BACKLOG, Departure, bound_socket, cannot_listen, run
from understudy_shared.telemetry.span_export import require_exporter

SWITCH_INTERVAL_S = 0.0005
"""Time for which a worker thread may keep the interpreter from the event loop (5 ms by default): lookups come first."""


def main(settings: dict[str, object], started: Callable[[Node], None] | None = None) -> None:
    """Serve until interrupted. `started` gets the node before the first request, for a progress display.

    Raises UnderstudyError for what the caller can fix: the checkpoint, the settings, the port.
    """
    parsed = NodeSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    require_exporter()
    keep_files_private()
    access = parsed.access(parsed.application, parsed.host, is_node=True)
    node, listener = open_node(parsed)
    if started is not None:
        started(node)
    guard = node.settings.connection_guard()
    serve_app(create_app(node, guard=guard, access=access), listener, guard=guard)


def wait_silently(files: CheckpointFiles, settings: NodeSettings, _host: HostInfo, _listener: socket.socket) -> None:
    """Wait for the checkpoint while the port is closed."""
    wait_for_checkpoint(files, SystemClock(), limit_ms=settings.checkpoint_wait_ms, sleep=time.sleep)


def open_node(
    settings: NodeSettings,
    *,
    advertised_host: str = "",
    advertised_port: int = 0,
    wait: Callable[[CheckpointFiles, NodeSettings, HostInfo, socket.socket], None] = wait_silently,
) -> tuple[Node, socket.socket]:
    """Open the node, not yet following, and the socket it will answer on; refuse here everything that can be refused.

    `wait` returns when there is a checkpoint, or files that will never become one.
    """
    listener = bound_socket(settings.host, settings.port)
    port = listener.getsockname()[1]
    settings = settings.model_copy(update={"port": port})  # the default folder of a cluster's node is named after it
    try:
        files = open_checkpoint_files(settings.checkpoint)
        host = HostInfo(advertised_host or settings.host, advertised_port or port)
        wait(files, settings, host, listener)
        node = Node(settings, files, host=host, clock=SystemClock())
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise cannot_listen(error, settings.host, port) from None
    except BaseException:
        listener.close()
        raise
    return node, listener


def serve_app(
    app: App,
    listener: socket.socket,
    departure: Departure | None = None,
    *,
    guard: ConnectionGuard,
) -> None:
    """Serve until interrupted, lookups before everything else; `understudy_shared.server.service` says how it ends."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run(app, listener, departure, guard)
