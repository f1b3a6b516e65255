"""How a service gets its port, serves, and ends: what every process with an HTTP face does the same way.

The order in which a service ends, from the first SIGTERM or SIGINT on:

1. It says that it goes (`Departure.announce`): /readyz is 503, so load balancers and routers choose others.
2. It answers as before for `Departure.delay_ms`, but closes each connection after its answer: clients go elsewhere.
3. It accepts nothing more, closes idle connections, and finishes what is in flight, for GRACEFUL_SHUTDOWN_S at most.
4. The application's lifespan ends: a node says farewell and stops following, a router closes its ways to the nodes;
   last, the bus is closed.

A second signal ends the process at once, as it would any other: what is on disk is made for that.

One of several worker processes does the same, but it gets its connections and its end from the supervisor.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from uvicorn.server import HANDLED_SIGNALS, ServerState

from understudy_shared.auth.access import Access
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import App
from understudy_shared.processes.link import WorkerLink
from understudy_shared.server.answers import Answers
from understudy_shared.server.connection_guard import ConnectionGuard, raise_file_limit
from understudy_shared.server.direct import AnswersBodies, AnswersDirectly
from understudy_shared.server.protocol import HttpProtocol
from understudy_shared.server.tls_connection import TlsConnection
from understudy_shared.tls.service_tls import ServiceTls

log = logging.getLogger(__name__)

BACKLOG = 2048

ACCEPTED_IN_A_TURN = 8
"""More would cost each new connection more: one that comes wakes all, and finds one."""

GRACEFUL_SHUTDOWN_S = 10

HANDOVER_MS = 100
"""How much longer than the supervisor accepts connections a worker takes them: it gets all that were accepted."""


class Departure(NamedTuple):
    """What a service does after the signal and before it stops to accept.

    `announce` has a deadline of its own; `delay_ms` is the time that others get to hear it.
    """

    announce: Callable[[], Awaitable[None]]
    delay_ms: int


class Service(uvicorn.Server):
    """Serves `app` until a signal, or until `should_exit` is set; the module says how it ends.

    `guard` holds its connections within their limits. `link` is there in a worker process. Who may ask what is the
    application's `access`, if it has one. `listening` is called once its ports take connections.
    """

    def __init__(
        self,
        app: App,
        departure: Departure | None = None,
        guard: ConnectionGuard | None = None,
        link: WorkerLink | None = None,
        listening: Callable[[], None] | None = None,
    ) -> None:
        self._listening = listening
        self._guard = guard or ConnectionGuard()
        access = getattr(app, "access", None)
        self._access = access if isinstance(access, Access) else Access()
        answers = Answers(
            direct=app if isinstance(app, AnswersDirectly) else None,
            bodies=app if isinstance(app, AnswersBodies) else None,
            access=self._access if self._access.is_on else None,
            cors=self._access.cors,
        )
        new_protocol = functools.partial(HttpProtocol, guard=self._guard, answers=answers)
        tls = self._access.tls
        if tls is not None and tls.server is not None:
            new_protocol = functools.partial(_by_tls, new_protocol, tls=tls, guard=self._guard)  # type: ignore[arg-type,assignment]
        super().__init__(
            uvicorn.Config(
                app,
                http=new_protocol,  # type: ignore[arg-type]  # called as a class is
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,  # no code asks who the client is
                timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
            )
        )
        self._departure = departure
        self._link = link

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        places = [(each, *each.getsockname()[:2]) for each in sockets or ()]
        await super().startup(None if sockets is None else [each for one in sockets for each in accepting(one)])
        for each, host, port in places:
            if (
                each.fileno() < 0
            ):  # uvloop closes it when another one listens there since it was bound, and says nothing
                await self.lifespan.shutdown()
                raise cannot_listen(OSError(errno.EADDRINUSE, ""), host, port)
        self._guard.start()
        self._access.start()
        if self._link is not None:
            await self._link.start(self._new_protocol)
        if self._listening is not None:
            self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            if self._link is not None:
                await self._link.stop_taking()
            await super().shutdown(sockets)
        finally:
            self._guard.stop()
            self._access.stop()
            if self._link is not None:
                self._link.close()

    def _new_protocol(self) -> asyncio.Protocol:
        """A connection that was handed over, as uvicorn makes those that it accepts."""
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal; the next one has its usual effect. A supervisor's process manager may signal both, so a
        worker leaves it to the supervisor to end it at once.
        """
        if self._link is not None:
            self.should_exit = True
            return
        for each in HANDLED_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Until the service is to end, and through its departure: everything is still answered here."""
        await super().main_loop()
        self.server_state.default_headers = [(b"connection", b"close")]  # of every answer begun from now on
        if self._departure is None:
            return
        try:
            await self._departure.announce()
        except Exception:
            log.exception("the departure was not announced", extra={"action": "departure-failed"})
        await asyncio.sleep(self._departure.delay_ms / 1000)


def _by_tls(
    new_protocol: Callable[..., HttpProtocol],
    config: uvicorn.Config,
    server_state: ServerState,
    app_state: dict[str, Any],
    _loop: asyncio.AbstractEventLoop | None = None,
    *,
    tls: ServiceTls,
    guard: ConnectionGuard,
) -> TlsConnection:
    """A connection that speaks TLS, made as uvicorn makes its protocols."""
    new_inner = functools.partial(new_protocol, config=config, server_state=server_state, app_state=app_state)
    return TlsConnection(new_inner, tls=tls, guard=guard, connections=server_state.connections)


def run(
    app: App,
    listener: socket.socket | None,
    departure: Departure | None = None,
    guard: ConnectionGuard | None = None,
    link: WorkerLink | None = None,
    *,
    listening: Callable[[], None] | None = None,
) -> None:
    """Serve until interrupted, and end in good order. Raises UnderstudyError when the application did not start.

    A `listener` that does not listen yet does so when the application's lifespan has begun; then `listening` is called.

    A worker process has a `link`, and no `listener` when the supervisor hands it connections.
    """
    raise_file_limit()
    leave_out_what_stays()
    if link is not None and departure is not None:
        departure = departure._replace(delay_ms=departure.delay_ms + HANDOVER_MS)
    service = Service(app, departure, guard, link, listening)
    service.run(sockets=[] if listener is None else [listener])
    if not service.started:
        is_open = listener is not None and listener.fileno() >= 0
        where = "{}:{}".format(*listener.getsockname()[:2]) if listener is not None and is_open else ""
        raise UnderstudyError("the service did not start", where=where, fix="The log above says why")


def accepting(listener: socket.socket) -> list[socket.socket]:
    """The listener, several times. libuv accepts one connection of a socket in a turn of the loop: where turns are long
    (a busy machine, a flood on the bus), connections that come together would wait for one turn each, the last of 100
    for 100 turns.
    """
    return [listener, *(listener.dup() for _ in range(ACCEPTED_IN_A_TURN - 1))]


def leave_out_what_stays() -> None:
    """Exempt everything that exists now from garbage collection: modules, classes, the application.

    A full collection looks at 90,000 of these objects for 20 to 80 ms, about once a second under batches; no request is
    answered meanwhile. Nothing of it would ever be collected.
    """
    gc.collect()
    gc.freeze()


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet: nothing connects to a service that may still refuse to start."""
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
