"""Folders for unix-domain sockets: private to the user, and short enough for the kernel.

A socket's path must fit in 107 bytes, and a folder of temporary files may be longer than that alone: the failure is
then a puzzling one, far from its cause. Rule: code that opens a unix socket takes its folder from here.

Ports that are free now, for a server that is started in a moment.

The kernel gives outgoing connections their ports from the ephemeral range (Linux: 32768 and up). A port from there
that was free when it was chosen may be taken when its server starts. What is chosen here lies below that range.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom

from understudy_shared.base.errors import UnderstudyError

MAX_SOCKET_PATH_BYTES = 107
"""The kernel's limit: `sun_path` of Linux is 108 bytes with its closing zero."""


CHOSEN_FROM = range(20_000, 30_000)
"""Ports below the ephemeral ranges of Linux and macOS, and below the node ports of Kubernetes."""

_TRIES = 100
_random = SystemRandom()  # The common generator may be seeded alike in tests that run side by side.


def free_port() -> int:
    """Choose a loopback port that is free now."""
    return free_ports([0])[0]


def free_ports(wanted: Sequence[int]) -> list[int]:
    """Choose a port for each of `wanted`, in order, all different: the wanted port, or another one where that is 0 or
    taken.

    All are held until all are chosen.
    """
    with ExitStack() as held:
        chosen = [_bound(port, held) if port else None for port in wanted]
        return [_any(held) if port is None else port for port in chosen]


def _any(held: ExitStack) -> int:
    for _ in range(_TRIES):
        if port := _bound(_random.choice(CHOSEN_FROM), held):
            return port
    port = _bound(0, held)
    assert port is not None, "the kernel has a port"
    return port


def _bound(port: int, held: ExitStack) -> int | None:
    """Bind a port with a socket that `held` closes, and return its number; None when the port is taken."""
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return None
    bound: int = listener.getsockname()[1]
    return bound


class SocketPathError(UnderstudyError):
    """The path of a unix socket is longer than the kernel allows."""


def socket_path(folder: Path, name: str) -> Path:
    """Return the path of a socket in `folder`, checked against the kernel's limit."""
    path = folder / name
    length_bytes = len(os.fsencode(path))
    if length_bytes > MAX_SOCKET_PATH_BYTES:
        raise SocketPathError(
            f"a unix socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes, this one {length_bytes}",
            where=str(path),
            fix="Point TMPDIR at a folder with a short name, such as /tmp",
        )
    return path


@contextmanager
def private_socket_dir(longest_name: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a new folder that only this user may enter (0700), and remove it at the end.

    `longest_name` is the longest file name that will be opened in it: a folder too deep for it is refused now. The
    parent is the system's folder for temporary files; when that one is too deep, /tmp serves in its place.
    """
    folder = Path(tempfile.mkdtemp(prefix="us-", dir=parent))
    try:
        if parent is None and len(os.fsencode(folder / longest_name)) > MAX_SOCKET_PATH_BYTES:
            folder.rmdir()
            folder = Path(tempfile.mkdtemp(prefix="us-", dir="/tmp"))  # mkdtemp makes it private
        socket_path(folder, longest_name)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
