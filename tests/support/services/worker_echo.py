"""A small service of several worker processes, under a real supervisor in a process of its own.

Nothing heavy is imported here: each worker process pays for it. `supervised.py` has the tests' side.

`python -m tests.support.services.worker_echo WORKERS FOLDER DELAY_MS` prints the port that the workers share. A file in
FOLDER changes what a worker does: `go` lets answers to /slow go, `dead-1` makes worker 1 say that it cannot go on,
`waits-1` holds back its start, `ends-1` ends it then, `refuses-1` makes it refuse, `impatient` is for the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson
from tests.support.services.lifespan import lifespan

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.http.edge import Receive, Scope, Send, send_reply
from understudy_shared.processes import supervisor
from understudy_shared.processes.ports import ports_from
from understudy_shared.processes.run import run_workers
from understudy_shared.processes.supervisor import WorkerOrder
from understudy_shared.server.service import Departure, bound_socket, run
from understudy_shared.telemetry.logs import configure_logging, configured_logging

HOST = "127.0.0.1"
IMPATIENT_S = 2.0
"""In place of the supervisor's half minute, for a test that cannot wait so long."""


class Echo:
    """The application of one worker."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._leaving = False

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def said(self, name: str) -> bool:
        """Whether a file says it of this worker."""
        return self.has(f"{name}-{self._number}")

    async def leave(self) -> None:
        self._leaving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        status, body = 200, b"{}"
        match scope["path"]:
            case "/livez":
                status = 503 if self.said("dead") else 200
            case "/readyz":
                status = 503 if self._leaving else 200
            case path:
                while path == "/slow" and not self.has("go"):  # noqa: ASYNC110  # another process makes it
                    await asyncio.sleep(0.01)
                body = orjson.dumps({"pid": os.getpid(), "worker": self._number})
        await send_reply(send, status, body, b"application/json")


def serve_as_worker(settings: dict[str, Any], number: int) -> None:
    app = Echo(Path(settings["folder"]), number)
    while app.said("waits"):
        time.sleep(0.01)
    if app.said("ends"):
        sys.exit(7)
    if app.said("refuses"):
        raise UnderstudyError("it will not", where="here", fix="Take the file away")
    shared = bound_socket(HOST, settings["port"], is_shared=True)
    own = bound_socket(HOST, settings["port"] + 1 + number)
    run(app, own, Departure(app.leave, settings["delay_ms"]), shared=shared, is_supervised=True)


def main() -> None:
    workers, folder, delay_ms = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    configure_logging()
    if (Path(folder) / "impatient").exists():
        supervisor.SILENT_AFTER_S = IMPATIENT_S
    shared, *own = ports_from(HOST, 0, 1 + workers)
    settings = {"folder": folder, "delay_ms": delay_ms, "host": HOST, "port": shared}
    serve = f"{__spec__.name}:serve_as_worker"
    try:
        run_workers(
            [WorkerOrder(serve, settings, port, configured_logging()) for port in own],
            host=HostInfo(HOST, shared),
            delay_ms=delay_ms,
            started=lambda _: say(str(shared)),
        )
    except UnderstudyError as error:
        say(str(error))
        sys.exit(3)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
