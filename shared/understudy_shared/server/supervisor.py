"""Runs a service as several worker processes: starts them, restarts them, and answers for all of them.

This process serves no client itself. It accepts connections and hands them over where the workers share a port; it asks
the workers for their state; and it sends a worker, which a client asks for /readyz or /metrics, the values of all
workers.

It ends as a service of one process does, and in the same order: at the first SIGTERM or SIGINT the workers announce
their end, nothing new is accepted after the delay, and reads in flight are finished. At a second signal all end at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.processes.acceptor import Acceptor
from understudy_shared.processes.group import WORKERS, Status, merged_status
from understudy_shared.processes.link import METRICS
from understudy_shared.processes.metric_sums import Family, Labels, MetricSample, MetricSums, family_of, to_document
from understudy_shared.processes.worker_process import END_REASONS, Kill, WorkerEnd, WorkerOrder, WorkerProcess
from understudy_shared.server.service import BACKLOG, GRACEFUL_SHUTDOWN_S
from understudy_shared.telemetry.metric_families import used_by_the_process

log = logging.getLogger(__name__)

STATUS_TIMEOUT_S = 1.0
METRICS_TIMEOUT_S = 2.0
LOOK_EVERY_S = 1.0

SILENT_AFTER_S = 30.0
"""The silence after which a worker is killed. A restart costs it all its connections, so this is long."""

END_LIMIT_S = 2.0 * GRACEFUL_SHUTDOWN_S
"""Time for a worker, beyond its delay, to finish requests in flight and to end."""

_SUPERVISOR = -1
"""The number of this process among the workers, whose numbers begin at 0, where metrics are added up."""


class WorkerSupervisor:
    """The worker processes of one service, on the loop that runs it."""

    def __init__(
        self, orders: Sequence[WorkerOrder], *, host: HostInfo, listener: socket.socket | None, delay_ms: int
    ) -> None:
        """Set the workers and their port. `listener` is bound; None: each worker listens by itself. `delay_ms` is the
        time from the signal until the port is closed.
        """
        self.host = host
        self._delay_ms = delay_ms
        self.is_tls = bool(orders) and orders[0].settings.get("tls_cert_file") is not None
        self.wants_keys = bool(orders) and orders[0].settings.get("credentials_file") is not None
        has_port = listener is not None
        self._workers = [self._worker(number, order, takes=has_port) for number, order in enumerate(orders)]
        self._acceptor = None if listener is None else Acceptor(listener, self._workers)
        self._sums = MetricSums()
        self._ends: Counter[str] = Counter()
        self._last_end: dict[int, WorkerEnd] = {}
        self._again_ms: dict[int, int] = {}
        self._sent_causes: dict[str, str] = {}
        self._asking: dict[str, asyncio.Task[Any]] = {}
        self._were_started: set[int] = set()
        self._stop = asyncio.Event()
        self._refused: UnderstudyError | None = None

    def __repr__(self) -> str:
        return f"WorkerSupervisor({self._workers})"

    def not_ready(self) -> list[str]:
        """Return why clients should not be sent yet, as far as the supervisor knows; /readyz knows more."""
        return [f"worker {worker.number} starts" for worker in self._workers if not worker.is_started]

    async def run(self) -> None:
        """Run the workers until `stop`. Raises UnderstudyError if a worker cannot start at all."""
        keeping = [self._task(f"keep worker {worker.number}", self._keep(worker)) for worker in self._workers]
        watching = self._task("watch the workers", self._watch())
        try:
            await self._stop.wait()
            if self._refused is None:
                await self._leave(keeping)
        finally:
            for worker in self._workers:
                worker.kill(Kill.LATE)
            for task in (watching, *keeping):
                task.cancel()
            await asyncio.wait([watching, *keeping])
            if self._acceptor is not None:
                self._acceptor.close()
        if self._refused is not None:
            raise self._refused

    def stop(self) -> None:
        """End in good order; on the second call, at once."""
        if self._stop.is_set():
            for worker in self._workers:
                worker.kill(Kill.LATE)
        self._stop.set()

    async def _leave(self, keeping: Sequence[asyncio.Task[None]]) -> None:
        log.info("stopping", extra={"action": "leaving"})
        for worker in self._workers:
            worker.terminate()
        await asyncio.wait(keeping, timeout=self._delay_ms / 1000)
        if self._acceptor is not None:
            self._acceptor.close()
        await asyncio.wait(keeping, timeout=END_LIMIT_S)

    def _task(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task whose failure ends the service: without the task, a worker that ends would not be noticed."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("task %s died", task.get_name(), exc_info=error, extra={"action": "task-died"})
            fix = "Report it, with the log"
            self._refused = UnderstudyError(f"the supervisor failed: {error!r}", where=task.get_name(), fix=fix)
            self._stop.set()

    # ---- a worker's life

    def _worker(self, number: int, order: WorkerOrder, *, takes: bool) -> WorkerProcess:
        return WorkerProcess(
            number,
            order,
            self._answer,
            takes_connections=takes,
            on_started=lambda: self._was_started(number),
            on_room=self._go_on,
            give_back=self._give_back,
        )

    async def _keep(self, worker: WorkerProcess) -> None:
        while not self._stop.is_set():
            end = await worker.run()
            self._sums.ended(worker.number)
            if self._stop.is_set():
                return
            if worker.number not in self._were_started:
                why = UnderstudyError("the service did not start", where=end.how, fix="The log above says why")
                self._refused = worker.refused or why
                self._stop.set()
                return
            await self._wait_for_restart(worker, end)

    async def _wait_for_restart(self, worker: WorkerProcess, end: WorkerEnd) -> None:
        delay_ms = worker.restarts.ended(end.lived_ms)
        self._ends[end.reason] += 1
        self._last_end[worker.number], self._again_ms[worker.number] = end, delay_ms
        why = worker.refused or end.how
        log.error(
            "worker %d %s; it starts again in %d ms", worker.number, why, delay_ms,
            extra={"action": "worker-ended", "reason": end.reason, "in_a_row": worker.restarts.in_a_row},
        )  # fmt: skip
        self._send_causes()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), delay_ms / 1000)

    def _was_started(self, number: int) -> None:
        self._were_started.add(number)
        self._workers[number].send_causes(self._sent_causes)
        log.info("worker %d started", number, extra={"action": "worker-started"})
        if self._acceptor is not None:
            self._acceptor.open(BACKLOG)
            self._acceptor.go_on()

    def _go_on(self) -> None:
        if self._acceptor is not None:
            self._acceptor.go_on()

    def _give_back(self, connection: socket.socket) -> None:
        assert self._acceptor is not None
        self._acceptor.give_back(connection)

    async def _watch(self) -> None:
        """Check the workers at intervals: without requests, no other code notices a worker that hangs."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await asyncio.gather(*(self._look(worker) for worker in self._workers))
                self._send_causes()
                self._go_on()
            except Exception:
                log.exception("the workers could not be checked", extra={"action": "watch-failed"})

    async def _look(self, worker: WorkerProcess) -> None:
        if not worker.is_started:
            return
        found = await worker.status(timeout_s=STATUS_TIMEOUT_S)
        now_s = asyncio.get_running_loop().time()
        if found is None:
            if worker.is_started and now_s - worker.answered_s > SILENT_AFTER_S:
                worker.kill(Kill.SILENT)
            return
        worker.restarts.is_up(worker.lived_ms())
        if found[1] is not None:
            log.error("worker %d: %s", worker.number, found[1], extra={"action": "worker-dead"})
            worker.kill(Kill.DEAD)

    # ---- status and metrics of all workers

    def _causes(self) -> dict[str, str]:
        said = [
            f"worker {worker.number} ended {worker.restarts.in_a_row} times in a row, the last time it "
            f"{self._last_end[worker.number].how}"
            for worker in self._workers
            if worker.restarts.keeps_ending
        ]
        return {WORKERS: "; ".join(said)} if said else {}

    def _send_causes(self) -> None:
        causes = self._causes()
        if causes != self._sent_causes:
            self._sent_causes = causes
            for worker in self._workers:
                worker.send_causes(causes)

    async def _answer(self, what: str) -> object:
        """Return the status or the metrics of all workers; concurrent requests share one search."""
        task = self._asking.get(what)
        if task is None or task.done():
            find: Callable[[], Coroutine[Any, Any, object]] = self._metrics if what == METRICS else self._status
            task = self._asking[what] = asyncio.get_running_loop().create_task(find(), name=f"find {what}")
        return await asyncio.shield(task)

    async def _status(self) -> object:
        running = [worker for worker in self._workers if worker.is_started]
        found = await _of_each(running, lambda worker: worker.status(timeout_s=STATUS_TIMEOUT_S))
        statuses: dict[int, Status | None] = {n: None if one is None else one[0] for n, one in found.items()}
        down = {worker.number: self._why_down(worker) for worker in self._workers if worker not in running}
        merged = merged_status(statuses, down, self._causes())
        return [merged.reasons, merged.causes]

    def _why_down(self, worker: WorkerProcess) -> str:
        end = self._last_end.get(worker.number)
        if end is None:
            return "starts"
        return f"{end.how}, and starts again"

    async def _metrics(self) -> object:
        running = [worker for worker in self._workers if worker.is_started]
        found = await _of_each(running, lambda worker: worker.metrics(timeout_s=METRICS_TIMEOUT_S))
        self._sums.reported(_SUPERVISOR, map(family_of, used_by_the_process()))
        fresh = {_SUPERVISOR}
        for number, families in found.items():
            if families is not None and self._workers[number].is_started:
                self._sums.reported(number, families)
                fresh.add(number)
        return to_document([*self._sums.families(fresh), *self._own_metrics()])

    def _own_metrics(self) -> list[Family]:
        started = {str(worker.number): worker.connections for worker in self._workers if worker.is_started}
        ends = {reason: self._ends[reason] for reason in END_REASONS}
        return [
            _family("understudy_worker_processes", "gauge", "Worker processes that answer", {(): len(started)}),
            _family(
                "understudy_worker_connections", "gauge", "Connections of each worker process",
                {(("worker", number),): count for number, count in started.items()},
            ),
            _family(
                "understudy_worker_restarts", "counter", "Worker processes started again, by how they ended",
                {(("reason", reason),): count for reason, count in ends.items()},
            ),
        ]  # fmt: skip


def _family(name: str, kind: str, text: str, values: Mapping[Labels, float]) -> Family:
    sample = f"{name}_total" if kind == "counter" else name
    return Family(name, kind, text, [MetricSample(sample, labels, float(value)) for labels, value in values.items()])


async def _of_each(workers: Sequence[WorkerProcess], ask: Callable[[WorkerProcess], Awaitable[Any]]) -> dict[int, Any]:
    found = await asyncio.gather(*(ask(worker) for worker in workers))
    return {worker.number: one for worker, one in zip(workers, found, strict=True)}


def run_workers(
    orders: Sequence[WorkerOrder],
    *,
    host: HostInfo,
    listener: socket.socket | None,
    delay_ms: int,
    started: Callable[[WorkerSupervisor], None] | None = None,
) -> None:
    """Run a service's workers until a signal, whose usual effect then follows. Called on the main thread.

    Raises UnderstudyError when a worker cannot start. The arguments are those of `WorkerSupervisor`; `started` gets it.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    received: list[int] = []

    async def serve() -> None:
        supervisor = WorkerSupervisor(orders, host=host, listener=listener, delay_ms=delay_ms)
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
