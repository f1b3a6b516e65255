"""`understudy demo --json` as a process of its own: what it says when it is ready, and its parts to kill and to ask."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.oracle_serving import ServedProcess
from tests.support.served_node import Reply
from tests.support.spark_queries import wait_until

READY_LIMIT_S = 240.0
END_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoPart:
    """One process of the demo."""

    name: str
    role: str
    pid: int
    url: str
    argv: tuple[str, ...]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def get(self, target: str) -> Reply:
        """`GET target` over a connection of its own."""
        client = ServedProcess(self.port)
        try:
            return client.get(target)
        finally:
            client.close()

    def post(self, target: str, body: bytes) -> Reply:
        client = ServedProcess(self.port)
        try:
            return client.post(target, body)
        finally:
            client.close()


@dataclass(slots=True)
class DemoProcess:
    """A demo that is ready. `lines` are the JSON documents it has printed, the first of which tells what runs."""

    process: subprocess.Popen[str]
    errors: Path
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ready(self) -> dict[str, Any]:
        return self.lines[0]

    @property
    def checkpoint(self) -> Path:
        return Path(self.ready["checkpoint"])

    @property
    def application_id(self) -> str:
        return str(self.ready["application_id"])

    @property
    def redis(self) -> str:
        return str(self.ready["redis"])

    def parts(self, role: str) -> list[DemoPart]:
        return [
            DemoPart(part["name"], part["role"], part["pid"], part["url"] or "", tuple(part["argv"]))
            for part in self.ready["processes"]
            if part["role"] == role
        ]

    def stop(self) -> int:
        """Ctrl-C, and the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(END_LIMIT_S)


@contextmanager
def demo_process(folder: Path, arguments: Sequence[str] = ()) -> Iterator[DemoProcess]:
    """A demo until the end of the block; it begins when everything answers."""
    errors = folder / "demo-errors.txt"
    with errors.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "understudy", "demo", "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env={**os.environ, "TMPDIR": "/tmp"},
        )
    demo = DemoProcess(process, errors)
    reader = threading.Thread(target=_read, args=(process, demo.lines), name="demo output", daemon=True)
    reader.start()
    try:
        wait_until(
            lambda: bool(demo.lines) or process.poll() is not None, what="the demo to be ready", limit_s=READY_LIMIT_S
        )
        assert demo.lines, f"the demo ended with {process.poll()}:\n{errors.read_text()[-4000:]}"
        yield demo
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_LIMIT_S)
        reader.join(END_LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


def _read(process: subprocess.Popen[str], lines: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    lines.extend(map(json.loads, process.stdout))
