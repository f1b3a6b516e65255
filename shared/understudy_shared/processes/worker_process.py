"""One worker as the supervisor sees it: its process, the channel to it, and its connections.

A worker keeps its number when its process ends and another one takes its place. `run` is the life of one process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.processes.balance import STALLED_MS, WorkerLoad
from understudy_shared.processes.channel import Channel, ChannelError
from understudy_shared.processes.group import Status
from understudy_shared.processes.handover import HandedOver
from understudy_shared.processes.link import CAUSES, FAILED, METRICS, STARTED, STATUS, TAKES_NO_MORE
from understudy_shared.processes.metric_sums import Family, from_document
from understudy_shared.processes.restarts import Restarts
from understudy_shared.telemetry.logs import LogFormat

log = logging.getLogger(__name__)

MODULE = "understudy_shared.processes.worker"
END_LIMIT_S = 10.0
"""Seconds for a process whose channel has ended to end; only much memory takes the kernel long."""

_LOOK_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """The order to a worker process. `serve` is a `worker.ServeAsWorker` by `module:name`; settings are JSON."""

    serve: str
    settings: dict[str, Any]
    log: tuple[LogFormat, str] | None = None
    """Format and level of its log; None: as Python has it."""


class Kill(Enum):
    """The reason why the supervisor kills a process."""

    DEAD = "dead"
    SILENT = "silent"
    LATE = "late"

    @property
    def text(self) -> str:
        return {
            Kill.DEAD: "it said that it cannot go on",
            Kill.SILENT: "it did not answer",
            Kill.LATE: "it did not end in time",
        }[self]


END_REASONS = ("exited", "killed", Kill.DEAD.value, Kill.SILENT.value)
"""Ways in which a process may end that is then started again."""


class WorkerEnd(NamedTuple):
    """The end of a process: the label of a metric, and words."""

    reason: str
    how: str
    lived_ms: float


class WorkerProcess:
    """A worker, whose process may be replaced from time to time."""

    def __init__(
        self,
        number: int,
        order: WorkerOrder,
        answer: Callable[[str], Awaitable[object]],
        *,
        takes_connections: bool,
        on_started: Callable[[], None],
        on_room: Callable[[], None],
        give_back: Callable[[socket.socket], None],
    ) -> None:
        """Prepare a worker. `answer` is for what its process asks of the supervisor. `on_room`: it took connections, or
        takes no more; `give_back` gets those that it did not take.
        """
        self._takes_connections = takes_connections
        self.number = number
        self.restarts = Restarts()
        self.connections = 0
        self.last_given = 0
        self.is_started = False
        """Whether it can answer."""
        self.refused: UnderstudyError | None = None
        """The error by which it could not start, in its own words."""
        self.answered_s = 0.0
        """The time of its last answer, or of its start."""
        self.process: subprocess.Popen[bytes] | None = None
        self._order = order
        self._answer = answer
        self._on_started, self._on_room, self._give_back = on_started, on_room, give_back
        self._why_killed: Kill | None = None
        self._hangs = False
        self._channel: Channel | None = None
        self._handed: HandedOver | None = None
        self._born_s = 0.0

    def __repr__(self) -> str:
        return f"WorkerProcess({self.number}, {'started' if self.is_started else self.process})"

    async def run(self) -> WorkerEnd:
        """Start a process and wait for its end.

        Called on the main thread: the process is tied to the thread that starts it.
        """
        loop = asyncio.get_running_loop()
        self.is_started, self.refused, self._why_killed, self.connections = False, None, None, 0
        self._hangs = False
        control, theirs = socket.socketpair()
        pair = socket.socketpair() if self._takes_connections else None
        with theirs:
            self.process = _spawn(theirs, None if pair is None else pair[1])
        self._born_s = loop.time()
        self._channel = Channel(control, self._answer, self._on_notification)
        if pair is not None:
            self._handed = HandedOver(*pair)
            loop.add_reader(self._handed.fileno(), self._taken)
        try:
            await self._channel.open()
            self._channel.send(self._document())
            await self._channel.run()
        finally:
            self.is_started = False
            self._channel.close()
            self._let_go()
            code = await self._ended()
        return _end(code, self._why_killed, self.lived_ms())

    # ---- what the supervisor uses while it runs

    def lived_ms(self) -> float:
        return (asyncio.get_running_loop().time() - self._born_s) * 1000

    def standing(self, now_s: float) -> WorkerLoad | None:
        """Return the standing that decides whether it gets the next connection; None while it takes no connections."""
        handed = self._handed
        if handed is None or not self.is_started:
            return None
        hangs = self._hangs or handed.waits_s(now_s) * 1000 >= STALLED_MS
        return WorkerLoad(self.number, self.connections, handed.waiting, hangs, self.last_given)

    def give(self, connection: socket.socket, now_s: float) -> bool:
        """Hand it a connection. False: it cannot be handed over now."""
        return self._handed is not None and self._handed.give(connection, now_s)

    def take_back(self) -> list[socket.socket]:
        """Take back the connections of a worker that hangs. It gets others after its next answer."""
        self._hangs = True
        return [] if self._handed is None else self._handed.take_back()

    async def status(self, *, timeout_s: float) -> tuple[Status, str | None] | None:
        """Return its status, and why it cannot go on; None when it does not answer."""
        found = await self._ask(STATUS, timeout_s)
        if found is None:
            return None
        self.connections = found["connections"]
        return Status(tuple(found["reasons"]), found["causes"]), found["dead"]

    async def metrics(self, *, timeout_s: float) -> list[Family] | None:
        found = await self._ask(METRICS, timeout_s)
        return None if found is None else from_document(found)

    def send_causes(self, causes: dict[str, str]) -> None:
        if self._channel is not None and self.is_started:
            try:
                self._channel.notify(CAUSES, causes)
            except ChannelError:
                return  # it is ending

    def terminate(self) -> None:
        """Ask it to end in good order."""
        if self.process is not None:
            self.process.terminate()

    def kill(self, why: Kill) -> None:
        self._why_killed = self._why_killed or why
        if self.process is not None:
            self.process.kill()

    # ---- inside

    def _document(self) -> dict[str, Any]:
        order = self._order
        return {"serve": order.serve, "settings": order.settings, "worker": self.number, "log": order.log}

    def _on_notification(self, what: str, document: Any) -> None:
        if what == STARTED:
            self.is_started = True
            self.answered_s = asyncio.get_running_loop().time()
            self._on_started()
        elif what == FAILED:
            self.refused = UnderstudyError(**document)
        elif what == TAKES_NO_MORE:
            self._let_go()

    def _taken(self) -> None:
        assert self._handed is not None
        self.connections += self._handed.taken()
        self._hangs = False
        self._on_room()

    async def _ask(self, what: str, timeout_s: float) -> Any:
        if self._channel is None or not self.is_started:
            return None
        try:
            found = await self._channel.ask(what, timeout_s=timeout_s)
        except ChannelError:
            return None
        self.answered_s = asyncio.get_running_loop().time()
        self._hangs = False
        return found

    def _let_go(self) -> None:
        """Take no more connections: those that it did not take go to others."""
        handed, self._handed = self._handed, None
        if handed is not None:
            self.connections += handed.taken()
            asyncio.get_running_loop().remove_reader(handed.fileno())
            for connection in handed.ended():
                self._give_back(connection)

    async def _ended(self) -> int:
        """Wait for the end of a process whose channel has ended; return its code."""
        assert self.process is not None
        limit_s = time.monotonic() + END_LIMIT_S
        while (code := self.process.poll()) is None:
            if time.monotonic() > limit_s:
                self.process.kill()
            await asyncio.sleep(_LOOK_EVERY_S)
        return code


def _end(code: int, why_killed: Kill | None, lived_ms: float) -> WorkerEnd:
    if why_killed is not None:
        return WorkerEnd(why_killed.value, f"was killed: {why_killed.text}", lived_ms)
    if code < 0:
        return WorkerEnd("killed", f"was killed by {signal.Signals(-code).name}", lived_ms)
    return WorkerEnd("exited", f"ended with exit code {code}", lived_ms)


def _spawn(control: socket.socket, handover: socket.socket | None) -> subprocess.Popen[bytes]:
    descriptors = [control.fileno(), -1 if handover is None else handover.fileno()]
    # `-m` looks for modules in the working folder first: only where this process does so, too.
    found_there = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
    return subprocess.Popen(  # noqa: S603  # our own command line
        [sys.executable, *found_there, "-m", MODULE, *map(str, (os.getpid(), *descriptors))],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor for descriptor in descriptors if descriptor >= 0],
        start_new_session=True,  # Ctrl-C on the terminal is for the supervisor, which ends all in good order
    )
