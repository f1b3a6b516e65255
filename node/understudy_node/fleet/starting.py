"""The start of `understudy serve` and `understudy node` by their entry points, with one application or several.

Everything that can be refused is refused before the port opens: settings, the port, the file of applications. For a
single application also the checkpoint, and a node id that another process of the cluster uses; of several applications,
these affect each alone. An unreachable bus is not refused: the node waits for it, and reports that.

A single application answers for the process itself, without a dispatcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.opening import is_awaited, wait_for_checkpoint, what_is_there
from understudy_node.fleet.application import ApplicationSource, NodeApplication, NodeProcess
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.files import keep_files_private
from understudy_shared.base.masking import masked_location
from understudy_shared.base.processes import without_collections
from understudy_shared.http.edge import App
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.server.app import answer_with_problems, json_response, service_app
from understudy_shared.server.service import BACKLOG, Departure, Service, bound_socket, cannot_listen, run
from understudy_shared.telemetry.span_export import require_exporter

if TYPE_CHECKING:
    from understudy_node.cluster.member import Clusters, Membership

SWITCH_INTERVAL_S = 0.0005
"""Longest time that a worker thread keeps the interpreter from the event loop (5 ms by default): lookups come first."""

Started = Callable[[Any], None]
"""A function for a progress display. It gets the `Node`, or the process of several applications, before the first
request.
"""


def serve(settings: dict[str, object], started: Started | None = None) -> None:
    """Serve one checkpoint or several, until interrupted.

    Raises UnderstudyError for what the caller can fix: the settings, the checkpoint, the port.
    """
    _serve(NodeSettings(**settings), started)  # type: ignore[arg-type]  # pydantic validates


def node(settings: dict[str, object], started: Started | None = None) -> None:
    """Serve as a node in the cluster of one application, or of each of several, until interrupted. Raises as `serve`,
    and for a node id that is taken.
    """
    _serve(ClusterNodeSettings(**settings), started)  # type: ignore[arg-type]  # pydantic validates


def _serve(settings: NodeSettings, started: Started | None) -> None:
    settings.require_usable()
    require_exporter()
    keep_files_private()
    access, clusters = settings.own_access(), _clusters(settings)
    listener = bound_socket(settings.host, settings.port)
    port = listener.getsockname()[1]
    settings = settings.model_copy(update={"port": port})  # the default folder of a cluster's node is named after it
    app: App
    served: Any
    try:
        shared = NodeProcess(settings, access, settings.address(port), settings.connection_guard(), clusters)
        if settings.is_fleet:
            with without_collections():
                from understudy_node.fleet.process import FleetProcess  # noqa: PLC0415  # one application does without it

            process = FleetProcess(settings, shared)
            app, served, leave = process.app, process, process.leave
        else:
            application = NodeApplication(settings, shared, ApplicationSource("command"))
            node = _opened(application, access, listener)
            app, served, leave = application.make_app(node), node, application.leave
        try:
            listener.listen(BACKLOG)
        except OSError as error:
            raise cannot_listen(error, settings.host, settings.port) from None
    except BaseException:
        listener.close()
        raise
    if started is not None:
        started(served)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    departure = Departure(leave, settings.shutdown_delay_ms) if isinstance(settings, ClusterNodeSettings) else None
    run(app, listener, departure, shared.guard)


def _clusters(settings: NodeSettings) -> Clusters | None:
    """Return the part of the process in clusters; None for `understudy serve`, which does without their modules."""
    if not isinstance(settings, ClusterNodeSettings):
        return None
    with without_collections():
        from understudy_node.cluster.member import Clusters  # noqa: PLC0415

    return Clusters(settings)


def _opened(application: NodeApplication, access: Access, listener: socket.socket) -> Node:
    """Return the node of the only application, once there is a checkpoint, or files that will never become one. Its
    node id is claimed in its cluster.
    """
    membership, files = application.membership, application.open_files()
    limit_ms = application.settings.checkpoint_wait_ms
    if membership is None or limit_ms == 0 or not is_awaited(files):
        wait_for_checkpoint(files, SystemClock(), limit_ms=limit_ms, sleep=time.sleep)
    else:
        _serve_until_it_arrives(files, membership, access, listener)
    node = application.build(files)
    if membership is not None:
        asyncio.run(claim(membership, node))
    return node


async def claim(membership: Membership, node: Node) -> None:
    """Claim the node id on this loop, by a bus of its own. Raises UnderstudyError if it is taken."""
    bus = membership.other_bus()
    try:
        await membership.claim(node, bus)
    finally:
        await bus.close()


class _EndedError(Exception):
    """The service ended before the checkpoint arrived."""


def _serve_until_it_arrives(
    files: CheckpointFiles, membership: Membership, access: Access, listener: socket.socket
) -> None:
    """Serve while the checkpoint does not exist yet: probes answer, and heartbeats report what this node waits for.
    Until then nothing is assigned to it, because its heartbeats name no lineage.

    Return once the checkpoint exists, or cannot become one any more; the node takes over the port. Raises
    NotACheckpointError after `checkpoint_wait_ms`; errors of the storage propagate. A signal ends the process.
    """
    settings = membership.settings
    service = Service(_waiting_app(files, membership, access), guard=settings.connection_guard())
    ended = threading.Event()
    failures: list[Exception] = []

    def sleep(seconds: float) -> None:
        if ended.wait(seconds):
            raise _EndedError

    def wait() -> None:
        try:
            wait_for_checkpoint(files, SystemClock(), limit_ms=settings.checkpoint_wait_ms, sleep=sleep)
        except Exception as error:  # raised again below, in the thread of the service
            failures.append(error)
        service.should_exit = True

    waiting = threading.Thread(target=wait, name="wait for the checkpoint", daemon=True)
    waiting.start()
    service.run(sockets=[listener.dup()])  # it closes its sockets when it ends
    ended.set()
    waiting.join()
    if failures:
        raise failures[0]


def _waiting_app(files: CheckpointFiles, membership: Membership, access: Access) -> FastAPI:
    """Return the application that answers probes, and refuses everything else.

    Without credentials a client does not learn the reason where credentials are required.
    """
    waits_for = f"a checkpoint at {masked_location(files.url)}: {what_is_there(files)}"
    why = f"this node waits for {waits_for}"

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        bus = membership.other_bus()
        try:
            async with membership.waiting(lambda: waits_for, bus):
                yield
        finally:
            await bus.close()

    http = service_app("Understudy node", lifespan)

    @http.get("/livez")
    async def livez() -> Response:
        return json_response({"alive": True, "reason": None})

    @http.get("/readyz")
    async def readyz() -> Response:
        return json_response({"ready": False, "reasons": [] if access.is_on else [why], "degraded": None}, 503)

    @http.api_route("/{path:path}", methods=["GET", "POST"])
    async def other(_: Request) -> Response:
        detail = "this node waits for its checkpoint" if access.is_on else why
        raise ProblemError(Problem(ProblemType.NOT_INITIALISED, detail, "", "Start the query, or ask another node"))

    answer_with_problems(http)
    http.access = access  # type: ignore[attr-defined]  # the service takes TLS from it
    return http
