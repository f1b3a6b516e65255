"""A worker process's side: answers the supervisor, and asks it about the whole service.

When the supervisor ends, this process ends at once: it would not be started again, and its port belongs to the next
service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.processes.channel import Channel, ChannelError, frame
from understudy_shared.processes.group import ProcessReport, Status, exposition
from understudy_shared.processes.handover import Intake
from understudy_shared.processes.metric_sums import family_of, from_document, to_document

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
"""Seconds for an answer: longer than the supervisor waits for any worker."""

STARTED, FAILED, TAKES_NO_MORE, CAUSES = "started", "failed", "takes-no-more", "causes"
"""Notifications."""

STATUS, METRICS = "status", "metrics"
"""Subjects of asks."""


class WorkerLink:
    """The worker's place among the processes of its service; a `Group`."""

    def __init__(self, number: int, control: socket.socket, handover: socket.socket | None) -> None:
        """Take the ends of the channels. `handover` brings connections; None: the worker listens by itself."""
        self.number = number
        self._control = control
        self._intake = None if handover is None else Intake(handover)
        self._channel = Channel(control, self._answer, self._on_notification)
        self._report: ProcessReport | None = None
        self._causes: Mapping[str, str] = {}
        self._asking: dict[str, asyncio.Task[Any]] = {}
        self._running: asyncio.Task[None] | None = None
        self._is_ending = False

    # ---- the service's side

    async def start(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Tell the supervisor that the service can answer, and take connections."""
        await self._channel.open()
        self._running = asyncio.get_running_loop().create_task(self._run(), name="talk to the supervisor")
        self._channel.notify(STARTED, None)
        if self._intake is not None:
            self._intake.start(new_protocol)

    async def stop_taking(self) -> None:
        """Take no more connections; those that are on their way go to others."""
        if self._intake is not None:
            await self._intake.stop()
            with contextlib.suppress(ChannelError):
                self._channel.notify(TAKES_NO_MORE, None)

    def close(self) -> None:
        """Close the channel: the service has ended."""
        self._is_ending = True
        self._channel.close()

    def failed(self, error: UnderstudyError) -> None:
        """Tell why this process could not start, before it ends."""
        document = {"what": error.what, "where": error.where, "fix": error.fix}
        try:
            self._control.sendall(frame(["notify", FAILED, document]))
        except OSError:
            return

    # ---- Group

    def join(self, report: ProcessReport) -> None:
        self._report = report

    def causes(self) -> Mapping[str, str]:
        return self._causes

    async def status(self) -> Status:
        """Return the status of all processes. Without an answer the service is not ready: others may not be."""
        try:
            reasons, causes = await self._ask(STATUS)
        except ChannelError as error:
            own = self._own.status()
            return Status((*own.reasons, _unheard(error)), own.causes)
        return Status(tuple(reasons), causes)

    async def metrics(self) -> bytes:
        """Return the metrics of all processes. Raises a problem without them: one's numbers would look like a fall."""
        try:
            families = from_document(await self._ask(METRICS))
        except ChannelError as error:
            raise ProblemError(Problem(ProblemType.NOT_INITIALISED, _unheard(error), fix="Retry")) from None
        return await asyncio.to_thread(exposition, [family.metric() for family in families])

    # ---- the supervisor's side

    @property
    def _own(self) -> ProcessReport:
        assert self._report is not None, "the service joins before it serves"
        return self._report

    async def _answer(self, what: str) -> object:
        if what == METRICS:
            return to_document(family_of(metric) for metric in self._own.metrics())
        reasons, causes = self._own.status()
        return {
            "reasons": reasons,
            "causes": {str(cause): why for cause, why in causes.items()},  # some Python versions give enums
            "dead": self._own.dead(),
            "connections": self._own.connections(),
        }

    def _on_notification(self, what: str, document: Any) -> None:
        if what == CAUSES:
            self._causes = document

    async def _run(self) -> None:
        await self._channel.run()
        if not self._is_ending:
            log.error("the supervisor ended: this process ends, too", extra={"action": "supervisor-ended"})
            os.kill(os.getpid(), signal.SIGKILL)

    def _ask(self, what: str) -> Coroutine[Any, Any, Any]:
        """Ask one question of a kind at a time, however many requests want its answer."""
        task = self._asking.get(what)
        if task is None or task.done():
            asking = self._channel.ask(what, timeout_s=ASK_TIMEOUT_S)
            task = self._asking[what] = asyncio.get_running_loop().create_task(asking, name=f"ask for {what}")
        return _shared(task)


def _unheard(error: ChannelError) -> str:
    return f"the supervisor of the worker processes does not answer: {error}"


async def _shared(task: asyncio.Task[Any]) -> Any:
    return await asyncio.shield(task)
