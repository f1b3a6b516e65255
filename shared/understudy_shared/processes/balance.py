"""Which worker process gets the next connection (pure).

The one with the fewest open connections: a connection that is kept alive stays where it is for hours, so a bad
distribution would stay, too. What the kernel does is not even: with SO_REUSEPORT it throws dice, and of the processes
that wait at one listener nearly always the same one is woken first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STALLED_MS = 250
"""A worker that has not taken a connection for so long hangs: it gets none while another one does not."""

MAX_WAITING = 128
"""Connections that wait for one worker, and confirmations that wait for the supervisor: half of what a socket pair
takes by default. Beyond that they wait in the kernel's queue.
"""


class WorkerLoad(NamedTuple):
    """What is known of a worker that runs. `waiting`: connections handed over that it has not taken yet."""

    number: int
    connections: int
    waiting: int
    hangs: bool
    """It has not taken a connection for STALLED_MS."""
    last_given: int
    """Counts hand-overs: who got one longest ago has the lowest number."""


def choose_worker(workers: Iterable[WorkerLoad]) -> int | None:
    """The worker for a new connection; None while it has to wait for one."""
    free = [worker for worker in workers if worker.waiting < MAX_WAITING]
    if not free:
        return None
    return min(
        free,
        key=lambda worker: (worker.hangs, worker.connections + worker.waiting, worker.last_given),
    ).number
