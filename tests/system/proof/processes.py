"""Processes of the proof's world: started, frozen, killed and started again with the same command line.

Each is tied to this process and dies with it; each has a log of its own, which later lives continue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.support.cluster.served_node import Reply
from tests.support.oracle.serving import ServedProcess
from tests.support.repository import ROOT
from tests.support.services.command_line import environment
from tests.system.proof.proxy import Toxics

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.processes import tied_command

END_LIMIT_S = 20


class Process:
    """One program with its command line. Start it on the main thread: it ends with the thread that started it."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        self.log = log
        self.launcher: tuple[str, ...] = ("understudy",)
        """The module that takes the arguments, and what comes before them."""
        self.variables: Mapping[str, str] = {}
        """Of its environment, beside this process's own."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """`python -m LAUNCHER... ARGUMENTS...`."""
        assert not self.is_running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                tied_command(sys.executable, "-m", *self.launcher, *self.arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment({"PYTHONUNBUFFERED": "1", **self.variables}),
                start_new_session=True,
            )

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_LIMIT_S)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> int:
        """Ask it to end in good order; returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(END_LIMIT_S)


class Service(Process):
    """A node or a router, at a port of its own."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, *, port: int) -> None:
        super().__init__(name, arguments, log)
        self.port = port

    def get(self, target: str) -> Reply:
        """`GET target`, directly, over a connection of its own."""
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

    @property
    def is_ready(self) -> bool:
        """Whether it says so."""
        try:
            return self.get("/readyz").status == 200
        except OSError:
            return False

    @property
    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


class Talking:
    """A helper of the proof in a process of its own that takes orders, a line each, and answers in lines."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                tied_command(sys.executable, "-m", module, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=environment({"PYTHONUNBUFFERED": "1"}),
                start_new_session=True,
                text=True,
            )

    def order(self, line: str) -> str:
        """Send `line` to the process and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise UnderstudyError(f"{self.name} ended", where=str(self._log), fix="Its log says why")
        return answer

    def end(self, limit_s: float = END_LIMIT_S) -> None:
        """Nothing more to say: it finishes by itself, and is killed if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_LIMIT_S)
        self._process.stdout.close()


class Proxies:
    """All proxies of a world, in one process."""

    def __init__(self, log: Path) -> None:
        self._talking = Talking("the proxies", "tests.system.proof.proxy", (), log)

    def open(self, name: str, target: int) -> int:
        """A new proxy before a port of this machine; returns its own port."""
        return int(self._talking.order(json.dumps({"proxy": name, "target": target})))

    def set(self, name: str, toxics: Toxics) -> None:
        """Set how a proxy behaves from now on."""
        self._talking.order(json.dumps({"proxy": name, "toxics": asdict(toxics)}))

    def end(self) -> None:
        self._talking.end()
