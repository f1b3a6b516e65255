"""Ties a process to the one that started it: when that one ends, even by SIGKILL, this one is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Tie this process to `parent`, or exit if that one has ended already.

    Only Linux has this. The tie is to the thread that started this process: it must be one that lives on.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we were tied to it
        sys.exit(1)
