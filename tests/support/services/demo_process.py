"""`understudy demo --json` as a process of its own: what it says, and its parts to ask and to kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster.served_node import Reply
from tests.support.oracle.serving import ServedProcess
from tests.support.services.command_line import UNDERSTUDY, environment
from tests.support.spark.queries import wait_until

READY_LIMIT_S = 240
END_LIMIT_S = 90


@dataclass(frozen=True, slots=True)
class DemoPart:
    """One process of the demo; `argv` starts it again."""

    name: str
    role: str
    pid: int
    url: str
    argv: tuple[str, ...]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, target: str) -> Reply:
        """`GET target`, over a connection of its own."""
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


class DemoProcess:
    """The demo; what it says lies in files."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True)
        self._output, self._errors = folder / "output.txt", folder / "errors.txt"
        with self._output.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                [UNDERSTUDY, "demo", "--json", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment({"TMPDIR": str(self.scratch)}),
                start_new_session=True,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """All that it has said."""
        return [json.loads(line) for line in self._output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, event: str, *, limit_s: float = READY_LIMIT_S) -> dict[str, Any]:
        """The first event of a kind."""
        wait_until(
            lambda: any(entry["event"] == event for entry in self.events) or self.process.poll() is not None,
            what=f"{event!r} of the demo",
            limit_s=limit_s,
        )
        found = next((entry for entry in self.events if entry["event"] == event), None)
        assert found is not None, self._errors.read_text()
        return found

    @property
    def ready(self) -> dict[str, Any]:
        """What it said when everything answered."""
        return self.wait_for("ready")

    @property
    def checkpoint(self) -> Path:
        return Path(self.ready["checkpoint"])

    def parts(self, role: str) -> list[DemoPart]:
        """Its processes of one kind."""
        return [
            DemoPart(part["name"], part["role"], part["pid"], part["url"] or "", tuple(part["argv"]))
            for part in self.ready["processes"]
            if part["role"] == role
        ]

    def interrupt(self) -> int:
        """Ctrl-C, as a terminal sends it: to everybody in the group. Returns the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(END_LIMIT_S)


@contextmanager
def demo_process(folder: Path, arguments: Sequence[str] = ()) -> Iterator[DemoProcess]:
    """A demo until the end of the block; it begins when everything answers."""
    running = DemoProcess(folder, arguments)
    try:
        running.wait_for("ready")
        yield running
    finally:
        running.process.kill()
        running.process.wait(END_LIMIT_S)
