"""Runs a service as several worker processes: starts them, starts those again that end, and ends them.

It takes part in no request. Each worker is a whole service with a port of its own, where the supervisor asks it whether
it is alive.

It ends as a service of one process does: at the first SIGTERM or SIGINT each worker ends in good order. At a second
signal all end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.processes import worker as worker_module
from understudy_shared.processes.restarts import Restarts
from understudy_shared.processes.worker import refused
from understudy_shared.server.service import GRACEFUL_SHUTDOWN_S, NOT_STARTED
from understudy_shared.telemetry.logs import LogFormat

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOK_AT_STARTS_EVERY_S = 0.1
LOOK_TIMEOUT_S = 5.0

SILENT_AFTER_S = 30.0
"""The silence after which a worker is killed. A restart costs it all its connections, so this is long."""

END_LIMIT_S = 2.0 * GRACEFUL_SHUTDOWN_S
"""Time for a worker, beyond its delay, to finish requests in flight and to end."""


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """The order to a worker process. `serve` is a `worker.ServeAsWorker` by `module:name`; settings are JSON."""

    serve: str
    settings: dict[str, Any]
    port: int
    """Port at which this worker alone answers."""
    log: tuple[LogFormat, str] | None = None
    """Format and level of its log; None: as Python has it."""

    @property
    def is_tls(self) -> bool:
        return self.settings.get("tls_cert_file") is not None


@dataclass(slots=True)
class Worker:
    """A worker, which keeps its number when its process ends and another one takes its place."""

    number: int
    order: WorkerOrder
    restarts: Restarts = field(default_factory=Restarts)
    process: Process | None = None
    is_alive: bool = False
    """Whether its process has answered since it began."""
    was_alive: bool = False
    """Whether any of its processes has answered."""

    def end(self, number: signal.Signals) -> None:
        """Send a signal to its process."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                self.process.send_signal(number)


class WorkerSupervisor:
    """The worker processes of one service, on the loop that runs it."""

    def __init__(self, orders: Sequence[WorkerOrder], *, host: HostInfo, delay_ms: int) -> None:
        """Set the workers. `host` is where the service is reached; `delay_ms` is the time from the signal until a
        worker closes its ports.
        """
        self.host = host
        self.is_tls = orders[0].is_tls
        self.wants_keys = orders[0].settings.get("credentials_file") is not None
        self._delay_ms = delay_ms
        self._workers = [Worker(number, order) for number, order in enumerate(orders)]
        self._stop = asyncio.Event()
        self._refused: UnderstudyError | None = None

    def __repr__(self) -> str:
        return f"WorkerSupervisor({self._workers})"

    def not_ready(self) -> list[str]:
        """Return why clients should not be sent yet, as far as the supervisor knows; /readyz knows more."""
        return [f"worker {worker.number} starts" for worker in self._workers if not worker.is_alive]

    async def run(self) -> None:
        """Run the workers until `stop`. Raises UnderstudyError if a worker cannot start at all.

        Called on the main thread: processes are tied to the thread that starts them.
        """
        async with asyncio.TaskGroup() as group:
            keeping = [group.create_task(self._keep(worker)) for worker in self._workers]
            await self._stop.wait()
            log.info("stopping", extra={"action": "leaving"})
            self._end_all(signal.SIGTERM)
            _, late = await asyncio.wait(keeping, timeout=self._delay_ms / 1000 + END_LIMIT_S)
            if late:
                log.error("%d workers did not end in time: they are killed", len(late), extra={"action": "end-late"})
                self._end_all(signal.SIGKILL)
        if self._refused is not None:
            raise self._refused

    def stop(self) -> None:
        """End in good order; on the second call, at once."""
        if self._stop.is_set():
            self._end_all(signal.SIGKILL)
        self._stop.set()

    def _end_all(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.end(number)

    async def _keep(self, worker: Worker) -> None:
        """Run a worker's processes, one after another, until the service ends."""
        now = asyncio.get_running_loop().time
        while not self._stop.is_set():
            born_s = now()
            how, error = await self._run(worker)
            if self._stop.is_set():
                return
            if not worker.was_alive:
                where = f"worker {worker.number} {how}"
                self._refused = error or UnderstudyError(NOT_STARTED, where=where, fix="The log above says why")
                self._stop.set()
                return
            delay_ms = worker.restarts.ended((now() - born_s) * 1000)
            log.error(
                "worker %d %s; it starts again in %d ms", worker.number, error or how, delay_ms,
                extra={"action": "worker-ended", "in_a_row": worker.restarts.in_a_row},
            )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay_ms / 1000)

    async def _run(self, worker: Worker) -> tuple[str, UnderstudyError | None]:
        """Run one process of a worker to its end; return how it ended, and why if it refused to start."""
        process = worker.process = await _spawn()
        if self._stop.is_set():
            process.terminate()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(worker, process))
            order = worker.order
            document = {
                "serve": order.serve, "settings": order.settings, "worker": worker.number, "log": order.log,
            }  # fmt: skip
            found, _ = await process.communicate(orjson.dumps(document))
            watching.cancel()
        worker.is_alive = False
        assert process.returncode is not None
        return _how_it_ended(process.returncode), refused(found)

    async def _watch(self, worker: Worker, process: Process) -> None:
        """Ask a process whether it is alive, and kill one that was and does not answer any more."""
        now = asyncio.get_running_loop().time
        answered_s = now()
        while not self._stop.is_set():
            await asyncio.sleep(LOOK_EVERY_S if worker.is_alive else LOOK_AT_STARTS_EVERY_S)
            if await says_alive(worker.order):
                answered_s = now()
                if not worker.is_alive:
                    worker.is_alive = worker.was_alive = True
                    log.info(
                        "worker %d answers at port %d", worker.number, worker.order.port,
                        extra={"action": "worker-started"},
                    )  # fmt: skip
            elif worker.is_alive and now() - answered_s > SILENT_AFTER_S:
                log.error(
                    "worker %d is killed: for %g s it has not said at /livez that it is alive",
                    worker.number, SILENT_AFTER_S, extra={"action": "worker-silent"},
                )  # fmt: skip
                process.kill()
                return


async def says_alive(order: WorkerOrder) -> bool:
    """Ask a worker at its own port whether it is alive."""
    tls = None
    if order.is_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # it is a process of ours, on this machine
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(order.settings["host"], order.port, ssl=tls)
            with contextlib.closing(writer):
                writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    except (OSError, ValueError):  # ValueError: what answers is no service of ours
        return False


def _how_it_ended(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


async def _spawn() -> Process:
    # `-m` looks for modules in the working folder first: only where this process does so, too.
    found_there = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
    return await asyncio.create_subprocess_exec(
        sys.executable, *found_there, "-m", worker_module.__name__, str(os.getpid()),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # Ctrl-C on the terminal is for the supervisor, which ends all in good order
    )  # fmt: skip


def run_workers(
    orders: Sequence[WorkerOrder],
    *,
    host: HostInfo,
    delay_ms: int,
    started: Callable[[WorkerSupervisor], None] | None = None,
) -> None:
    """Run a service's workers until a signal, whose usual effect then follows. Called on the main thread.

    Raises UnderstudyError when a worker cannot start. The arguments are those of `WorkerSupervisor`; `started` gets it.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    received: list[int] = []

    async def serve() -> None:
        supervisor = WorkerSupervisor(orders, host=host, delay_ms=delay_ms)
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            received.append(number)
            supervisor.stop()

        for number in before:
            loop.add_signal_handler(number, stop, number)
        if started is not None:
            started(supervisor)
        await supervisor.run()

    try:
        asyncio.run(serve())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
