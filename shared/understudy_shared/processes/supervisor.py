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
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.processes import worker as worker_module
from understudy_shared.processes.command import module_command
from understudy_shared.processes.liveness import LOOK_EVERY_S, Liveness, SilenceTimer, liveness_of
from understudy_shared.processes.restarts import Restarts
from understudy_shared.processes.worker import refused
from understudy_shared.server.service import GRACEFUL_SHUTDOWN_S, NOT_STARTED
from understudy_shared.telemetry.logs import LogFormat

log = logging.getLogger(__name__)

LOOK_AT_STARTS_EVERY_S = 0.1

SILENT_AFTER_S = 30.0
"""The silence after which a worker is killed. A restart costs it all its connections, so this is long."""

END_LIMIT_S = 2.0 * GRACEFUL_SHUTDOWN_S
"""Time for a worker, beyond its delay, to finish requests in flight and to end."""


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """The order to a worker process. `serve` is a `worker.ServeAsWorker` by `module:name`; settings are JSON."""

    serve: str
    settings: dict[str, Any] = field(repr=False)  # they hold passwords
    port: int
    """Port at which this worker alone answers."""
    log: tuple[LogFormat, str] | None = None
    """Format and level of its log; None: as Python has it."""

    @property
    def own_host(self) -> HostInfo:
        return HostInfo(self.settings["host"], self.port)

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

    def kill(self, why: str, *, action: str) -> None:
        log.error("worker %d is killed: %s", self.number, why, extra={"action": action})
        self.end(signal.SIGKILL)


class WorkerSupervisor:
    """The worker processes of one service, on the loop that runs it."""

    def __init__(self, orders: Sequence[WorkerOrder], *, host: HostInfo, delay_ms: int) -> None:
        """Set the workers. `host` is where the service is reached; `delay_ms` is the time from the signal until a
        worker closes its ports.
        """
        self.host = host
        self.own_hosts = [order.own_host for order in orders]
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
            if self._refused is None:
                log.info("stopping", extra={"action": "leaving"})
            self._end_all(signal.SIGTERM if self._refused is None else signal.SIGKILL)  # it never was up
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
                log.error("%s: the service ends", where, extra={"action": "worker-refused"})
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
        try:
            process = worker.process = await _spawn()
        except Exception as error:  # whatever this machine lacks, the other workers serve on
            return f"could not be started: {error}", None
        if self._stop.is_set():
            worker.end(signal.SIGTERM)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(worker))
            order = worker.order
            document = {
                "serve": order.serve, "settings": order.settings, "worker": worker.number, "log": order.log,
            }  # fmt: skip
            found, _ = await process.communicate(orjson.dumps(document))
            watching.cancel()
        worker.is_alive = False
        assert process.returncode is not None
        return _how_it_ended(process.returncode), refused(found)

    async def _watch(self, worker: Worker) -> None:
        """Ask a process whether it is alive, and kill one that says no, or that said yes and is silent."""
        now = asyncio.get_running_loop().time
        silence = SilenceTimer(now())
        while not self._stop.is_set():
            await asyncio.sleep(LOOK_EVERY_S if worker.is_alive else LOOK_AT_STARTS_EVERY_S)
            liveness = await liveness_of(worker.order.own_host, is_tls=worker.order.is_tls)
            silent_s = silence.after(liveness, now())
            if liveness is Liveness.DEAD:
                worker.kill("it says at /livez that it cannot go on", action="worker-dead")
                return
            if worker.is_alive and silent_s > SILENT_AFTER_S:
                why = f"for {SILENT_AFTER_S:g} s it has not said at /livez that it is alive"
                worker.kill(why, action="worker-silent")
                return
            if liveness is Liveness.ALIVE and not worker.is_alive:
                worker.is_alive = worker.was_alive = True
                log.info(
                    "worker %d answers at port %d", worker.number, worker.order.port,
                    extra={"action": "worker-started"},
                )  # fmt: skip


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}  # some real-time signals have no name
    return f"was killed by {names.get(-code, f'signal {-code}')}"


async def _spawn() -> Process:
    return await asyncio.create_subprocess_exec(
        *module_command(worker_module.__name__, str(os.getpid())),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # Ctrl-C on the terminal is for the supervisor, which ends all in good order
    )  # fmt: skip
