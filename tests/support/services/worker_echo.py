"""A small service of several worker processes, under a real supervisor in a process of its own.

Nothing heavy is imported here: each worker process pays for it. `supervised.py` has the tests' side.

`python -m tests.support.services.worker_echo WORKERS FOLDER DELAY_MS` prints its port when it accepts. A file in FOLDER
changes what a worker does: `go` lets answers to /slow go, `unready-1` and `dead-1` are what worker 1 says of itself,
`ends-1` ends it when it starts, `refuses-1` makes it refuse to start, `impatient` is for the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from tests.support.services.lifespan import lifespan

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.http.edge import Receive, Scope, Send, send_reply
from understudy_shared.processes.group import ProcessReport, Status
from understudy_shared.processes.link import WorkerLink
from understudy_shared.processes.worker_process import WorkerOrder
from understudy_shared.server import supervisor
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.service import Departure, bound_socket, run
from understudy_shared.server.supervisor import run_workers
from understudy_shared.telemetry.logs import configure_logging, configured_logging

IMPATIENT_S = 2.0
"""In place of the supervisor's half minute, for a test that cannot wait so long."""


class Echo:
    """The application of one worker."""

    def __init__(self, folder: Path, link: WorkerLink) -> None:
        self._folder = folder
        self._link = link
        self._asked = 0
        self._leaving = False

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def said(self, name: str) -> bool:
        """Whether a file says it of this worker."""
        return self.has(f"{name}-{self._link.number}")

    def status(self) -> Status:
        reasons = ("leaving",) if self._leaving else ("not yet",) if self.said("unready") else ()
        return Status(reasons, self._link.causes())

    def metrics(self) -> Iterable[Metric]:
        yield CounterMetricFamily("echo_asked", "Requests", self._asked)
        yield GaugeMetricFamily("understudy_router_in_flight", "One for each worker", 1)

    async def leave(self) -> None:
        self._leaving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        status, body = 200, b""
        match scope["path"]:
            case "/readyz":
                found = await self._link.status()
                status, body = found.http_status, orjson.dumps(found.document())
            case "/metrics":
                body = await self._link.metrics()
            case path:
                self._asked += 1
                while path == "/slow" and not self.has("go"):  # noqa: ASYNC110  # another process makes it
                    await asyncio.sleep(0.01)
                body = orjson.dumps({"pid": os.getpid(), "worker": self._link.number})
        await send_reply(send, status, body, b"application/json")


def serve_as_worker(settings: dict[str, Any], link: WorkerLink) -> None:
    guard = ConnectionGuard()
    app = Echo(Path(settings["folder"]), link)
    if app.said("ends"):
        sys.exit(7)
    if app.said("refuses"):
        raise UnderstudyError("it will not", where="here", fix="Take the file away")
    link.join(
        ProcessReport(
            status=app.status,
            dead=lambda: "it is dead" if app.said("dead") else None,
            metrics=app.metrics,
            connections=lambda: len(guard.connections),
        )
    )
    run(app, None, Departure(app.leave, settings["delay_ms"]), guard, link)


def main() -> None:
    workers, folder, delay_ms = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    configure_logging()
    if (Path(folder) / "impatient").exists():
        supervisor.SILENT_AFTER_S = IMPATIENT_S
    listener = bound_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    settings = {"folder": folder, "delay_ms": delay_ms}
    order = WorkerOrder(f"{__spec__.name}:serve_as_worker", settings, configured_logging())
    try:
        run_workers(
            [order] * workers,
            host=HostInfo("127.0.0.1", port),
            listener=listener,
            delay_ms=delay_ms,
            started=lambda _: say(str(port)),
        )
    except UnderstudyError as error:
        say(str(error))
        sys.exit(3)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
