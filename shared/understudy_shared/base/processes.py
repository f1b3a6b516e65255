"""This process and its children: commands that start one, the tie that ends it with its parent, imports, signals."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        import ctypes  # noqa: PLC0415  # costs milliseconds, and every command imports this module

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we were tied to it
        sys.exit(1)


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch garbage collection off during the block, which imports. A service starts with a quarter less CPU."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def signals_handled(handle: Callable[[], None], *kinds: signal.Signals) -> Iterator[None]:
    """Have the signals call `handle` within the block. Only the main thread gets signals: others see no effect."""
    import threading  # noqa: PLC0415  # as above

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, lambda *_: handle()) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
