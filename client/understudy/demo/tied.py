"""Runs a program that dies with the process that started it, also when that one is killed by SIGKILL.

`python -m understudy.demo.tied PARENT_PID PROGRAM ARGUMENT...` becomes PROGRAM: same process, same id. Unlike
preexec_fn this is safe in a process with threads.
"""

from __future__ import annotations

import os
import sys

from understudy_shared.processes.tie import die_with


def main() -> None:
    """Tie, check that the parent still lives, and become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    die_with(parent)
    os.execv(program[0], program)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main()
