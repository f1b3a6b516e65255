"""The life of a service: it gets its port, serves, and ends, in the same way for every process that answers over HTTP.

The order in which a service ends, from the first SIGTERM or SIGINT on:

1. It announces its end (`Departure.announce`): /readyz is 503, so load balancers and routers choose other processes.
2. It answers as before for `Departure.delay_ms`, but closes each connection after its answer, so clients go elsewhere.
   Then it ends the watches of keys, whose clients reconnect elsewhere.
3. It accepts no more connections, closes idle ones, and finishes requests in flight, for at most GRACEFUL_SHUTDOWN_S.
4. The application's lifespan ends: a node says farewell and stops following, a router closes its connections to the
   nodes; finally the bus is closed.

A second signal ends the process at once, as it would end any other process: the files on disk survive that.

Garbage collections are kept short by excluding long-lived objects. A full collection visits every object of the
process, and blocks everything else: 100 ms in a router of 100,000 replicas. Most objects that survive one are
long-lived, so after a long collection its survivors are excluded from the next ones. The only cost is that garbage
cycles among them are not freed. So all objects are visited again once twice as many are excluded.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import gc
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from uvicorn.server import HANDLED_SIGNALS, ServerState

from understudy_shared.auth.access import Access
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import App
from understudy_shared.server.answers import Answers
from understudy_shared.server.connection_guard import ConnectionGuard, raise_file_limit
from understudy_shared.server.direct import AnswersBatches, AnswersBodies, AnswersDirectly, EndsStreams
from understudy_shared.server.parsed_cache import lookup_line
from understudy_shared.server.protocol import HttpProtocol
from understudy_shared.server.tls_connection import TlsConnection
from understudy_shared.tls.service_tls import ServiceTls

log = logging.getLogger(__name__)

BACKLOG = 2048

ACCEPTED_IN_A_TURN = 8
"""Number of sockets on which a service accepts.

More sockets would make each connection more expensive: it wakes all of them, and only one accepts it.
"""

GRACEFUL_SHUTDOWN_S = 10

NOT_STARTED = "the service did not start"


FULL = 2
"""The generation of a full collection, which visits all objects that are not excluded."""

LONG_S = 0.01
"""Duration of a full collection from which its survivors are excluded."""


def leave_out_what_stays() -> None:
    """Exclude all objects that exist now from collections: modules, classes, the application. From now on, also exclude
    the survivors of a long full collection.

    Otherwise a full collection would visit 90,000 of these objects, about once a second under batches.
    """
    gc.collect()
    gc.freeze()
    if _survivors not in gc.callbacks:
        gc.callbacks.append(_survivors)


class SurvivorsLeftOut:
    """A callback of the collector (`gc.callbacks`)."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._whole = 0
        """Number of objects after the last collection that visited all of them; 0 while the next one does."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Handle the start or the end of a collection."""
        if info["generation"] < FULL:
            return
        if phase == "start":
            self._began_s = time.perf_counter()
        elif time.perf_counter() - self._began_s >= LONG_S:
            self._leave_out()

    def _leave_out(self) -> None:
        gc.freeze()
        left_out = gc.get_freeze_count()
        if not self._whole:
            self._whole = left_out
        elif left_out > 2 * self._whole:
            self._whole = 0
            gc.unfreeze()


_survivors = SurvivorsLeftOut()


class Departure(NamedTuple):
    """The departure of a service: its steps between the signal and the end of accepting.

    `announce` has a deadline of its own; `delay_ms` is the time for others to notice it.
    """

    announce: Callable[[], Awaitable[None]]
    delay_ms: int


class Service(uvicorn.Server):
    """The server of `app`. It runs until a signal, or until `should_exit` is set; the module describes how it ends.

    `guard` keeps its connections within their limits. `is_alone`: its process runs no other service. The application's
    `access`, if it has one, authorizes requests. `listening` is called once the ports accept connections.
    """

    def __init__(
        self,
        app: App,
        departure: Departure | None = None,
        guard: ConnectionGuard | None = None,
        *,
        is_alone: bool = False,
        listening: Callable[[], None] | None = None,
    ) -> None:
        self._is_alone = is_alone
        self._listening = listening
        self._guard = guard or ConnectionGuard()
        access = getattr(app, "access", None)
        self._access = access if isinstance(access, Access) else Access()
        answers = Answers(
            direct=app if isinstance(app, AnswersDirectly) else None,
            bodies=app if isinstance(app, AnswersBodies) else None,
            batches=app if isinstance(app, AnswersBatches) else None,
            access=self._access if self._access.is_on else None,
            cors=self._access.cors,
            root_path=self._access.root_path.encode(),
            lookup_line=lookup_line(self._access.root_path),
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
                proxy_headers=False,  # no code uses the client's address from a proxy
                timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
            )
        )
        self._departure = departure
        self._ends_streams = app if isinstance(app, EndsStreams) else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._is_alone:
            # Only after signals are handled here: Python drops a KeyboardInterrupt during a collection if a callback
            # is the first to see it, and the process would keep running.
            leave_out_what_stays()
        places = [(each, *each.getsockname()[:2]) for each in sockets or ()]
        await super().startup(None if sockets is None else [each for one in sockets for each in accepting(one)])
        for each, host, port in places:
            if each.fileno() < 0:
                # uvloop closes it, without an error, if another socket began to listen there after the bind.
                await self.lifespan.shutdown()
                raise cannot_listen(OSError(errno.EADDRINUSE, ""), host, port)
        self._guard.start()
        self._access.start()
        if self._listening is not None:
            self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            self._guard.stop()
            self._access.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end at the first signal. The next signal has its default effect."""
        for each in HANDLED_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Answer until the service must end, and during its departure."""
        await super().main_loop()
        self.server_state.default_headers = [(b"connection", b"close")]  # in every answer that begins from now on
        if self._departure is not None:
            try:
                await self._departure.announce()
            except Exception:
                log.exception("the departure was not announced", extra={"action": "departure-failed"})
            await asyncio.sleep(self._departure.delay_ms / 1000)
        if self._ends_streams is not None:
            await self._ends_streams.end_streams()


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
    """Return a TLS connection. The arguments are those with which uvicorn makes its protocols."""
    new_inner = functools.partial(new_protocol, config=config, server_state=server_state, app_state=app_state)
    return TlsConnection(new_inner, tls=tls, guard=guard, connections=server_state.connections)


def run(
    app: App,
    listener: socket.socket,
    departure: Departure | None = None,
    guard: ConnectionGuard | None = None,
    *,
    listening: Callable[[], None] | None = None,
) -> None:
    """Serve until interrupted, and shut down cleanly. Raises UnderstudyError if the application did not start.

    A `listener` that does not listen yet begins to once the application's lifespan has begun; then `listening` is
    called.
    """
    raise_file_limit()
    service = Service(app, departure, guard, is_alone=True, listening=listening)
    service.run(sockets=[listener])
    if not service.started:
        where = "{}:{}".format(*listener.getsockname()[:2]) if listener.fileno() >= 0 else ""
        raise UnderstudyError(NOT_STARTED, where=where, fix="The log above says why")


def accepting(listener: socket.socket) -> list[socket.socket]:
    """Return several sockets for the listener.

    libuv accepts one connection per socket and turn of the loop. If turns are long (a busy machine, a flood on the
    bus), connections that arrive together would wait one turn each, the last of 100 for 100 turns.
    """
    number = listener.fileno()
    more = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, number) for _ in range(ACCEPTED_IN_A_TURN - 1)]
    return [listener, *(socket.socket(fileno=each) for each in more)]


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet: the service may still refuse to start."""
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
