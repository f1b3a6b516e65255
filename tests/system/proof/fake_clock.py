"""A wall clock that jumps while a service runs: its monotonic clock and the times of files stay true.

`python -m tests.system.proof.fake_clock FILE ARGUMENTS...` runs `understudy ARGUMENTS...` with Python's wall clock
shifted by the seconds in FILE, eight bytes that another process may change at any time. The services read it in
Python only. (libfaketime shifts it for a whole process, but its locks and timed waits are so slow that a node under it
answers in 200 ms instead of 10, with pauses of a second, and no fault at all.)
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

_SHIFT = struct.Struct("<q")


class FakeClock:
    """The shift of the wall clock of the processes that run with it, in a file; it begins right."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(_SHIFT.pack(0))

    def jump(self, shift_s: int) -> None:
        """Differ by so many seconds from the right time, at once."""
        with self.file.open("r+b") as file:
            file.write(_SHIFT.pack(shift_s))

    @property
    def launcher(self) -> tuple[str, ...]:
        """What starts `understudy` with this clock: a module, and its first argument."""
        return ("tests.system.proof.fake_clock", str(self.file))


def shift_clock(file: Path) -> None:
    """Shift this process's wall clock by what the file says, from now on."""
    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), _SHIFT.size, access=mmap.ACCESS_READ)
    true_ns: Callable[[], int] = time.time_ns

    def shifted_ns() -> int:
        shift_s: int = _SHIFT.unpack_from(shared)[0]
        return true_ns() + shift_s * 1_000_000_000

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9


if __name__ == "__main__":
    shift_clock(Path(sys.argv.pop(1)))
    from understudy.cli import main  # imported by nobody before its clock is shifted

    main()
