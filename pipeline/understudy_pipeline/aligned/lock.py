"""One query per checkpoint: the planner's process holds a lock file in the checkpoint folder.

The kernel releases the lock when the process ends, however it ends. Spark ignores files whose name begins with a dot.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from understudy_shared.base.errors import UnderstudyError

LOCK_NAME = ".understudy.lock"

WAIT_S = 5.0
"""Spark does not wait for the planner of a stopped query to end: a query that restarts at once may still find it."""

_AGAIN_S = 0.05


class CheckpointInUseError(UnderstudyError):
    """Another query runs on this checkpoint."""


class CheckpointLock:
    """The lock, held from construction to `release`, or to the end of the process."""

    def __init__(self, checkpoint: Path, *, wait_s: float = WAIT_S) -> None:
        """Create the folder if needed and take the lock. Raises CheckpointInUseError after `wait_s`."""
        path = checkpoint / LOCK_NAME
        try:
            checkpoint.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as refusal:
            raise UnderstudyError(
                f"the checkpoint cannot be locked: {refusal.strerror}",
                where=str(path),
                fix="Make the folder writable, or leave out the option checkpoint",
            ) from refusal
        try:
            self._take(path, time.monotonic() + wait_s)
        except BaseException:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def _take(self, path: Path, end_s: float) -> None:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() >= end_s:
                holder = os.pread(self._file, 20, 0).decode(errors="replace")
                raise CheckpointInUseError(
                    f"another query reads this checkpoint; its planner is process {holder or '?'}",
                    where=str(path.parent),
                    fix="Stop that query first, or give this one a checkpointLocation of its own",
                )
            time.sleep(_AGAIN_S)

    def release(self) -> None:
        """Release the lock. Call it once."""
        os.close(self._file)
