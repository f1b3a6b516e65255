"""Folders for unix-domain sockets: private to the user, and short enough for the kernel.

A socket's path must fit in 107 bytes, and a folder of temporary files may be longer than that alone: the failure is
then a puzzling one, far from its cause. Rule: code that opens a unix socket takes its folder from here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy_shared.base.errors import UnderstudyError

MAX_SOCKET_PATH_BYTES = 107
"""The kernel's limit: `sun_path` of Linux is 108 bytes with its closing zero."""


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
