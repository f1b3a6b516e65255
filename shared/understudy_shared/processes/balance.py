"""The choice of the worker process that gets the next connection (pure).

It is the one with the fewest open connections: a keep-alive connection stays where it is for hours, so a bad
distribution would stay, too. The kernel does not distribute evenly: with SO_REUSEPORT it chooses by a hash, and of the
processes that wait at one listener it nearly always wakes the same one first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STALLED_MS = 250
"""Time without taking a connection after which a worker hangs: other workers then get the connections."""

MAX_WAITING = 128
"""Limit on the connections that wait for one worker, and on confirmations that wait for the supervisor: half of a
socket pair's default. Further ones wait in the kernel's queue.
"""


class WorkerLoad(NamedTuple):
    """The standing of a running worker. `waiting`: connections handed over that it has not taken yet."""

    number: int
    connections: int
    waiting: int
    hangs: bool
    """Whether it has not taken a connection for STALLED_MS."""
    last_given: int
    """Number of the last hand-over to it: the worker that got one longest ago has the lowest."""


def choose_worker(workers: Iterable[WorkerLoad]) -> int | None:
    """Choose the worker for a new connection; None while the connection has to wait."""
    free = [worker for worker in workers if worker.waiting < MAX_WAITING]
    if not free:
        return None
    return min(
        free,
        key=lambda worker: (worker.hangs, worker.connections + worker.waiting, worker.last_given),
    ).number
