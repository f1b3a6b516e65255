"""Child processes of this one's code: the command that starts one, and the tie that ends it with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this process's Python."""
    # `-m` looks for modules in the working folder first: only where this process does so, too.
    found_there = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
    return [sys.executable, *found_there, "-m", module, *arguments]


# Becomes the program, after asking the kernel (Linux) to kill it when the thread that started it ends, however it ends.
_TIE = """
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)
except (AttributeError, OSError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tied_command(program: str, *arguments: str) -> list[str]:
    """Return the command that becomes a program, same process and same id, which dies with this process.

    Unlike preexec_fn this is safe in a process with threads. The thread that starts it must be one that lives on.
    """
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), program, *arguments]


def die_with(parent: int) -> None:
    """Tie this process to `parent`: when that one ends, even by SIGKILL, this one is killed. Exit if it has ended.

    Only Linux has this. The tie is to the thread that started this process: it must be one that lives on.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we were tied to it
        sys.exit(1)
