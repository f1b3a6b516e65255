"""Serves while the checkpoint does not exist yet: probes answer, and heartbeats report what this node waits for.

When the checkpoint arrives the service ends and the node takes over its port. Until then nothing is assigned to it,
because its heartbeats name no lineage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI, Request, Response

from understudy_node.checkpoint.arrival import wait_for_checkpoint
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.supervise import Supervisor
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Farewell, Heartbeat
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.server.app import answer_with_problems, json_response, service_app
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.service import Service

log = logging.getLogger(__name__)

Say = Callable[[int], Heartbeat]
"""A function that builds the heartbeat with a sequence number."""


class _EndedError(Exception):
    """The service ended before the checkpoint arrived."""


def serve_until_it_arrives(
    files: CheckpointFiles,
    listener: socket.socket,
    *,
    limit_ms: int | None,
    say: Say,
    open_bus: Callable[[], Bus],
    gossip: Callable[[Bus], Gossip],
    access: Access,
    guard: ConnectionGuard,
) -> None:
    """Return once the checkpoint exists, or cannot become one any more. The port stays open.

    Raises NotACheckpointError after `limit_ms`; errors of the storage propagate. A signal ends the process.
    """
    app = _app(say, open_bus, gossip, is_guarded=access.is_on)
    app.access = access  # type: ignore[attr-defined]  # the service takes TLS from it
    service = Service(app, guard=guard)
    ended = threading.Event()
    failures: list[Exception] = []

    def sleep(seconds: float) -> None:
        if ended.wait(seconds):
            raise _EndedError

    def wait() -> None:
        try:
            wait_for_checkpoint(files, SystemClock(), limit_ms=limit_ms, sleep=sleep)
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


def _app(say: Say, open_bus: Callable[[], Bus], gossip: Callable[[Bus], Gossip], *, is_guarded: bool) -> FastAPI:
    """Return the application that answers probes, and refuses everything else.

    Without credentials a client does not learn the reason where credentials are required.
    """
    why = f"this node waits for {say(0).waits_for}"

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        bus = open_bus()
        try:
            async with saying(gossip(bus), say):
                yield
        finally:
            await bus.close()

    http = service_app("Understudy node", lifespan)

    @http.get("/livez")
    async def livez() -> Response:
        return json_response({"alive": True, "reason": None})

    @http.get("/readyz")
    async def readyz() -> Response:
        return json_response({"ready": False, "reasons": [] if is_guarded else [why], "degraded": None}, 503)

    @http.api_route("/{path:path}", methods=["GET", "POST"])
    async def other(_: Request) -> Response:
        detail = "this node waits for its checkpoint" if is_guarded else why
        raise ProblemError(Problem(ProblemType.NOT_INITIALISED, detail, "", "Start the query, or ask another node"))

    answer_with_problems(http)
    return http


@contextlib.asynccontextmanager
async def saying(gossip: Gossip, say: Say) -> AsyncIterator[None]:
    """Send heartbeats that report what this node waits for, and a farewell at the end."""
    tasks = Supervisor()
    tasks.start("say what is waited for", _beat(gossip, say))
    try:
        yield
    finally:
        await tasks.stop()
        last = say(0)
        farewell = Farewell(application_id=last.application_id, node_id=last.node_id, incarnation=last.incarnation)
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(1):
                await gossip.leave(farewell)


async def _beat(gossip: Gossip, say: Say) -> None:
    """Send heartbeats. While the bus is away they are lost, and the next one is tried."""
    number = 0
    while True:
        number += 1
        heartbeat = say(number)
        try:
            if not await gossip.beat(heartbeat):
                log.error(
                    "another process of the cluster uses node id %s",
                    heartbeat.node_id,
                    extra={"action": "identity-conflict"},
                )
        except BusError as error:
            log.debug("a heartbeat is lost: %s", error)
        await asyncio.sleep(heartbeat.heartbeat_ms / 1000)
